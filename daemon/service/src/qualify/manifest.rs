//! The manifest beside the kernel files, as tools/build-kernels writes it: where there is one, the files must be those it lists.

use super::QualifyError;
use crate::files;
use serde::Deserialize;
use skip_kernels::cuda::qualify::{KernelFile, kernel_files};
use skip_kernels::cuda::{CudaOptions, Probe};
use skip_tables::Digest;
use std::path::Path;

/// Largest manifest that is read.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Deserialize)]
struct Manifest {
    cubins: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    file: String,
    sha256: Digest,
}

/// Tells one set of kernel files from another: SHA-256 over names and contents of those for the device.
///
/// # Errors
/// There are none, one is not whole, or they are not those of the manifest.
pub fn digest(options: &CudaOptions, probe: &Probe) -> Result<String, QualifyError> {
    let files = kernel_files(options, probe)?;
    check(&options.cubins, &files).map_err(QualifyError::Files)?;
    let list: String = files.iter().map(|file| format!("{} {}\n", file.name, file.digest)).collect();
    Ok(Digest::of(list.as_bytes()).to_string())
}

fn check(folder: &Path, files: &[KernelFile]) -> Result<(), String> {
    let path = folder.join("manifest.json");
    let failed = |what: &str| format!("{}: {what}", path.display());
    let bytes = match files::read(&path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(&error.to_string())),
    };
    let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|error| failed(&error.to_string()))?;
    for file in files {
        match manifest.cubins.iter().find(|entry| entry.file == file.name) {
            None => return Err(failed(&format!("{} is not listed", file.name))),
            Some(entry) if entry.sha256 != file.digest => return Err(failed(&format!("{} is not the file that is listed", file.name))),
            Some(_) => {}
        }
    }
    // Those of other architectures may have been left out.
    let architecture = |name: &str| name.split_once(".sm_").map(|(_, rest)| rest.to_owned());
    let ours = files.first().and_then(|file| architecture(&file.name));
    let missing = |entry: &&Entry| architecture(&entry.file) == ours && files.iter().all(|file| file.name != entry.file);
    manifest.cubins.iter().find(missing).map_or(Ok(()), |entry| Err(failed(&format!("{} is missing", entry.file))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(name: &str, content: &str) -> KernelFile {
        KernelFile { name: name.into(), digest: Digest::of(content.as_bytes()) }
    }

    fn refusal(manifest: &str, files: &[KernelFile]) -> String {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("manifest.json"), manifest).unwrap();
        check(folder.path(), files).err().unwrap_or_default()
    }

    #[test]
    fn files_must_be_those_that_are_listed_and_all_of_them() {
        let entry = |f: &KernelFile| json!({"file": f.name, "sha256": f.digest.to_string(), "seconds": 3});
        let (a, b, other) = (file("a.sm_90a.cubin", "1"), file("b.sm_90a.cubin", "2"), file("a.sm_80.cubin", "3"));
        let manifest = json!({"complete": true, "cubins": [entry(&a), entry(&b), entry(&other)]}).to_string();
        assert_eq!(refusal(&manifest, &[a.clone(), b.clone()]), "");
        let spoilt = file("b.sm_90a.cubin", "0");
        assert!(refusal(&manifest, &[a.clone(), spoilt]).contains("b.sm_90a.cubin is not the file that is listed"));
        assert!(refusal(&manifest, std::slice::from_ref(&a)).contains("b.sm_90a.cubin is missing"));
        assert!(refusal(&manifest, &[a.clone(), b, file("c.sm_90a.cubin", "4")]).contains("c.sm_90a.cubin is not listed"));
        for broken in ["", "[]", "{\"cubins\": [{\"file\": 1}]}", "{\"cubins\": [{\"file\": \"a\", \"sha256\": \"xyz\"}]}"] {
            assert!(refusal(broken, std::slice::from_ref(&a)).contains("manifest.json: "), "{broken}");
        }
    }

    #[test]
    fn without_a_manifest_any_file_may_be() {
        assert_eq!(check(Path::new("/nowhere"), &[file("a.sm_90a.cubin", "1")]), Ok(()));
    }
}
