//! `generate`: continue a text.

use super::{Context, options, stream};
use crate::cli::Generate;
use crate::failure::Failure;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

pub async fn run(context: &Context, args: Generate) -> Result<(), Failure> {
    let prompt = prompt(args.prompt.as_deref(), args.file.as_deref(), "generate")?;
    let options = options::generation(&args.options, context.json)?;
    let client = context.connect().await?;
    let generation = client.complete(prompt).options(options).send().await?;
    stream::show(context, generation, &args.options).await.map(drop)
}

/// The text of a command that takes one, a file, or standard input.
pub fn prompt(text: Option<&str>, path: Option<&Path>, command: &str) -> Result<String, Failure> {
    match (path, text) {
        (Some(path), _) => file(path),
        (None, Some("-")) => stdin(),
        (None, Some(text)) => Ok(text.to_owned()),
        (None, None) if io::stdin().is_terminal() => {
            Err(Failure::Usage(format!("give a prompt, --file, or pipe a text in (see skipctl {command} --help)")))
        }
        (None, None) => stdin(),
    }
}

fn file(path: &Path) -> Result<String, Failure> {
    let wrong = |error| Failure::Io(path.display().to_string(), error);
    text(std::fs::read(path).map_err(wrong)?).map_err(wrong)
}

/// All of standard input.
pub fn stdin() -> Result<String, Failure> {
    let wrong = |error| Failure::Io("standard input".into(), error);
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).map_err(wrong)?;
    text(bytes).map_err(wrong)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("not UTF-8 from byte {at} on"))
    })
}
