//! `cargo run --release -p skip-import --example import -- MODEL.gguf DIR`: what `skipctl import` does, without skipctl.

use std::path::Path;

fn main() -> std::process::ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [gguf, dir] = &args[..] else {
        eprintln!("usage: import MODEL.gguf DIR");
        return std::process::ExitCode::from(2);
    };
    match skip_import::import(Path::new(gguf), Path::new(dir), |_| {}) {
        Ok(report) => {
            println!("{report:#?}");
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("import: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
