//! `generate`: continue a text.

use super::{Context, options, stream};
use crate::cli::Generate;
use crate::failure::Failure;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

pub async fn run(context: &Context, args: Generate) -> Result<(), Failure> {
    let prompt = match (&args.file, args.prompt.as_deref()) {
        (Some(path), _) => file(path)?,
        (None, Some("-")) => stdin()?,
        (None, Some(text)) => text.to_owned(),
        (None, None) if io::stdin().is_terminal() => {
            return Err(Failure::Usage("give a prompt, --file, or pipe a text in (see skipctl generate --help)".into()));
        }
        (None, None) => stdin()?,
    };
    let options = options::generation(&args.options, context.json)?;
    let client = context.connect().await?;
    let generation = client.complete(prompt).options(options).send().await?;
    stream::show(context, generation, &args.options).await.map(drop)
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
