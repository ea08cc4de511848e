//! Names the shared library, so that a program finds at run time one with the interface it was linked with: a later version with another
//! interface has another name. Before 1.0 every minor version may be such a one.

fn main() {
    let part = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    let (major, minor) = (part("MAJOR"), part("MINOR"));
    let interface = if major == "0" { format!("0.{minor}") } else { major };
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libskipd_client.so.{interface}");
}
