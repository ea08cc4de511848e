//! `report`: draws what price measured; needs no daemon.

use super::Context;
use crate::cli;
use crate::failure::Failure;
use crate::{output, report};
use skip_client::protocol::Price;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Largest price.json.
const MAX_BYTES: u64 = 16 << 20;
/// Most of them side by side: each has dashes and colours of its own.
const MOST_RUNS: usize = 32;

pub fn run(context: &Context, args: &cli::Report) -> Result<(), Failure> {
    if args.price_json.len() > MOST_RUNS {
        return Err(Failure::Usage(format!("{} runs; a page shows at most {MOST_RUNS}", args.price_json.len())));
    }
    let runs = args.price_json.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let page = report::page(&runs);
    std::fs::write(&args.out, page).map_err(|error| Failure::Io(args.out.display().to_string(), error))?;
    context.show(&serde_json::json!({"written": args.out, "runs": runs.len()}), |_| format!("written to {}", args.out.display()))
}

fn read(path: &Path) -> Result<Price, Failure> {
    let name = || path.display().to_string();
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    if read.map_err(|error| Failure::Io(name(), error))? as u64 > MAX_BYTES {
        return Err(Failure::Usage(format!("{}: more than {} MiB: no price.json", name(), MAX_BYTES >> 20)));
    }
    let price: Price = serde_json::from_str(&text).map_err(|error| Failure::Usage(format!("{}: not a price.json: {error}", name())))?;
    match price.format {
        1 => match report::check(&price) {
            Ok(()) => Ok(price),
            Err(why) => Err(Failure::Usage(format!("{}: {why}", name()))),
        },
        other => {
            output::note("this skipctl draws format 1");
            Err(Failure::Usage(format!("{}: format {other}", name())))
        }
    }
}
