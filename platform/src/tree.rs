//! Trees of files that stand in for boards, as `platform/trees` writes them: a path and its text a line, `\n` for a line feed, `@` in front of a
//! link, `#` in front of a remark.

use std::io;
use std::path::Path;

/// Makes the files of a tree under `root`.
///
/// # Errors
/// A line without text, or what the file system says.
pub fn lay_tree(manifest: &str, root: &Path) -> io::Result<()> {
    for line in manifest.lines().filter(|line| !line.starts_with('#')) {
        let (path, text) = line.split_once(' ').ok_or_else(|| io::Error::other(format!("no text in {line:?}")))?;
        let at = root.join(path.trim_start_matches(['@', '/']));
        at.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        match path.starts_with('@') {
            true => std::os::unix::fs::symlink(text, at)?,
            false => std::fs::write(at, format!("{}\n", text.replace("\\n", "\n")))?,
        }
    }
    Ok(())
}
