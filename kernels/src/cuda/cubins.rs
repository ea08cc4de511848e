//! Kernel files: found in a folder, told apart by what is in them, loaded as modules.

use super::device::{Device, words};
use super::image;
use super::launch::Kernel;
use super::unusable::Unusable;
use crate::backend::KernelError;
use cudarc::driver::result;
use cudarc::driver::sys::{CUfunction_attribute_enum as FunctionAttribute, CUmodule};
use skip_tables::Digest;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::CString;
use std::path::{Path, PathBuf};

/// Largest kernel file that is read.
const MAX_CUBIN: u64 = 64 << 20;

/// Where kernels are looked for unless told otherwise: `$SKIPD_CUBINS`, `cubins` beside the program or one folder up (a build), then the
/// installed place.
pub fn default_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("SKIPD_CUBINS") {
        return folder.into();
    }
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.ancestors().skip(1).take(3).map(|folder| folder.join("cubins"));
    beside.into_iter().find(|folder| folder.is_dir()).unwrap_or_else(|| PathBuf::from("/usr/lib/skipd/cubins"))
}

/// The architectures whose code runs on a device, best first.
fn architectures((major, minor): (i32, i32)) -> &'static [&'static str] {
    match (major, minor) {
        (8, 7) => &["87", "80"],
        (8, _) => &["80"],
        (9, 0) => &["90a"],
        (11, 0) => &["110a"],
        _ => &[],
    }
}

/// A kernel file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFile {
    /// Its name in the folder.
    pub name: String,
    /// SHA-256 of its contents.
    pub digest: Digest,
}

/// The modules of one device.
pub(super) struct Cubins {
    modules: Vec<CUmodule>,
    /// Those asked for so far; None: not there.
    kernels: HashMap<String, Option<Kernel>>,
    /// Kernels that count as not there.
    excluded: BTreeSet<String>,
    /// Kernels that were allowed their shared memory.
    roomy: HashSet<String>,
    /// The architecture in use.
    pub architecture: &'static str,
}

// SAFETY: module handles may be used from any thread that has bound the context.
unsafe impl Send for Cubins {}

impl Cubins {
    /// The architecture whose kernel files in `folder` fit the device, and the files.
    pub fn find_files((major, minor): (i32, i32), folder: &Path) -> Result<(&'static str, Vec<PathBuf>), Unusable> {
        let mut found = architectures((major, minor)).iter().map(|&architecture| (architecture, files(folder, architecture)));
        found.find(|(_, files)| !files.is_empty()).ok_or_else(|| Unusable::NoKernels { major, minor, folder: folder.to_owned() })
    }

    /// Loads every kernel file in `folder` that fits the device; kernels named in `excluded` count as not there.
    pub fn load(device: &Device, folder: &Path, excluded: &BTreeSet<String>) -> Result<Self, Unusable> {
        let (architecture, files) = Self::find_files(device.probe.capability, folder)?;
        let mut modules = Vec::new();
        for path in files {
            let bad = |reason: String| Unusable::BadKernels { path: path.clone(), reason };
            let image = read(&path).map_err(|e| bad(e.to_string()))?;
            device.ctx.bind_to_thread()?;
            // SAFETY: the image is whole, as `read` has checked, and outlives the call.
            modules.push(unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(|e| bad(words(e)))?);
        }
        Ok(Self { modules, kernels: HashMap::new(), excluded: excluded.clone(), roomy: HashSet::new(), architecture })
    }

    /// The kernel files for a device, each with its digest.
    ///
    /// # Errors
    /// There are none, or one cannot be read or is not whole.
    pub fn digests(capability: (i32, i32), folder: &Path) -> Result<Vec<KernelFile>, Unusable> {
        let digest = |path: PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match read(&path) {
                Ok(image) => Ok(KernelFile { name, digest: Digest::of(&image) }),
                Err(error) => Err(Unusable::BadKernels { path, reason: error.to_string() }),
            }
        };
        Self::find_files(capability, folder)?.1.into_iter().map(digest).collect()
    }

    /// The kernel of that name, if there is one.
    pub fn find(&mut self, name: &str) -> Option<Kernel> {
        if let Some(&known) = self.kernels.get(name) {
            return known;
        }
        let symbol = CString::new(name).ok().filter(|_| !self.excluded.contains(name))?;
        // SAFETY: the modules are loaded; a name they do not have is an error.
        let function = self.modules.iter().find_map(|&module| unsafe { result::module::get_function(module, symbol.clone()) }.ok());
        let kernel = function.map(|function| Kernel { function });
        self.kernels.insert(name.to_owned(), kernel);
        kernel
    }

    /// The kernel of that name.
    pub fn get(&mut self, name: &str) -> Result<Kernel, KernelError> {
        self.find(name).ok_or_else(|| {
            let why = if self.excluded.contains(name) { "is not to be used" } else { "is in none of the files" };
            KernelError::Invalid(format!("CUDA kernel {name} for sm_{} {why}", self.architecture))
        })
    }

    /// The kernel of that name, allowed `shared` bytes of dynamic shared memory.
    pub fn with_shared(&mut self, name: &str, shared: u32) -> Result<Kernel, KernelError> {
        let kernel = self.get(name)?;
        if shared > 40 << 10 && !self.roomy.contains(name) {
            let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded.
            unsafe { result::function::set_function_attribute(kernel.function, attribute, shared as i32) }
                .map_err(|e| KernelError::Invalid(format!("{name} with {shared} bytes of shared memory: {}", words(e))))?;
            self.roomy.insert(name.to_owned());
        }
        Ok(kernel)
    }
}

fn files(folder: &Path, architecture: &str) -> Vec<PathBuf> {
    let suffix = format!(".sm_{architecture}.cubin");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(&suffix)).collect();
    files.sort();
    files
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let len = std::fs::metadata(path)?.len();
    if len == 0 || len > MAX_CUBIN {
        return Err(std::io::Error::other(format!("{len} bytes")));
    }
    let image = std::fs::read(path)?;
    image::check(&image).map_err(std::io::Error::other)?;
    Ok(image)
}
