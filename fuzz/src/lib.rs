//! What the targets share: a folder in memory to put a file into, and a tiny checkpoint whose one file is the input.

use std::path::Path;
use tempfile::TempDir;

/// A small decoder of one layer, with every tensor that it needs.
pub const CONFIG: &[u8] = include_bytes!("../seeds/config/llama.json");
/// Its weights.
pub const WEIGHTS: &[u8] = include_bytes!("../seeds/safetensors/llama.safetensors");

/// An empty folder, in memory where the system has such a place; gone with the process.
pub fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("skipd-fuzz-").tempdir_in(place).expect("a folder for inputs")
}

/// The folder of the tiny checkpoint.
pub fn checkpoint() -> TempDir {
    let dir = folder();
    put(dir.path(), "config.json", CONFIG);
    put(dir.path(), "model.safetensors", WEIGHTS);
    dir
}

/// Writes a file.
pub fn put(dir: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(dir.join(name), bytes).expect("the folder can be written to");
}

thread_local! {
    /// One folder a process: a target writes its input over the one before.
    pub static CHECKPOINT: TempDir = checkpoint();
    /// The same, empty.
    pub static FOLDER: TempDir = folder();
}
