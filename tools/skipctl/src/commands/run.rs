//! `run`: asks every request of an input.json, up to batch_size at once, and writes the output.json.

use super::Context;
use crate::batch::{self, Batch, Overrides, Profile, Prompt, Request};
use crate::cli::Run;
use crate::failure::Failure;
use crate::output;
use serde_json::json;
use skip_client::{Answer, Client, Error, ErrorKind};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Largest input.json.
const MAX_BYTES: u64 = 1 << 30;
/// How long a request tries again while the daemon is busy with others'.
const PATIENCE: Duration = Duration::from_secs(600);

/// What became of a request.
type Outcome = Result<Answer, Error>;

pub async fn run(context: &Context, args: Run) -> Result<(), Failure> {
    let overrides = Overrides { batch_size: args.batch_size, max_generate_length: args.max_generate_length };
    let batch = Batch::parse(&read(&args.input_file)?, overrides)?;
    for note in &batch.notes {
        output::note(&format!("{}: {note}", args.input_file.display()));
    }
    if args.engine_dir.is_some() {
        output::note("--engine-dir is not read: the daemon answers with the checkpoint it was started with");
    }
    for file in [Some(&args.output_file), args.profile_output_file.as_ref()].into_iter().flatten() {
        // Found out before hours of answers, not behind them.
        writable(file)?;
    }
    let client = context.connect().await?;
    if let Some(first) = batch.items.iter().find_map(|item| item.request.as_ref().ok()) {
        for _ in 0..args.warmup {
            ask(client.clone(), first.clone()).await?;
        }
    }
    let began = Instant::now();
    let outcomes = all(&client, &batch, args.dump_output && !context.json).await?;
    let took = began.elapsed();

    let responses = batch.items.iter().zip(&outcomes).enumerate();
    let responses = responses.map(|(index, (item, outcome))| batch::response(index, batch.size, item, outcome)).collect();
    write(&args.output_file, &batch::document(&args.input_file, responses))?;
    let profile = Profile::of(outcomes.iter().flatten().map(|answer| &answer.usage), took);
    if let Some(file) = &args.profile_output_file {
        write(file, &json!(profile))?;
    }
    if args.dump_profile {
        output::note(&batch::profile_text(&profile));
    }
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    let told = json!({"output_file": args.output_file, "requests": outcomes.len(), "failed": failed, "profile": profile});
    context
        .show(&told, |_| format!("{}: {} of {} requests answered", args.output_file.display(), outcomes.len() - failed, outcomes.len()))?;
    match outcomes.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(first) => Err(Failure::Batch { failed, of: batch.items.len(), first }),
    }
}

/// Asks all, a new one whenever one has ended. Where the daemon goes away, the rest is not sent; where it answered nothing at all, that is the error.
async fn all(client: &Client, batch: &Batch, print: bool) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes: Vec<Option<Outcome>> =
        batch.items.iter().map(|item| item.request.as_ref().err().map(|error| Err(error.clone()))).collect();
    let mut waiting = batch.items.iter().enumerate().filter_map(|(index, item)| Some((index, item.request.as_ref().ok()?)));
    let mut running = JoinSet::new();
    let mut away: Option<Error> = None;
    loop {
        while running.len() < batch.size && away.is_none() {
            let Some((index, request)) = waiting.next() else { break };
            let (client, request) = (client.clone(), request.clone());
            running.spawn(async move { (index, ask(client, request).await) });
        }
        let Some(ended) = running.join_next().await else { break };
        let (index, outcome) = ended.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        match &outcome {
            Ok(answer) if print => output::text_line(&format!("requests[{index}]: {}", answer.text))?,
            Err(error) if error.kind.is_away() => away = away.or_else(|| Some(error.clone())),
            _ => {}
        }
        outcomes[index] = Some(outcome);
    }
    if let Some(error) = &away {
        if !outcomes.iter().flatten().any(Result::is_ok) {
            return Err(error.clone().into());
        }
        for (index, _) in waiting {
            outcomes[index] = Some(Err(Error { message: format!("not sent: {}", error.message), ..error.clone() }));
        }
    }
    // Every request was refused, answered, or counted as not sent.
    Ok(outcomes.into_iter().flatten().collect())
}

/// One answer; a daemon that is busy with others' requests is asked again.
async fn ask(client: Client, request: Request) -> Outcome {
    let began = Instant::now();
    loop {
        let sent = match &request.prompt {
            Prompt::Chat(messages) => client.chat().messages(messages.clone()).options(request.options.clone()).send().await,
            Prompt::Raw(text) => client.complete(text.as_str()).options(request.options.clone()).send().await,
        };
        match sent {
            Err(error) if error.kind == ErrorKind::Busy && began.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_secs(error.retry_after_s().unwrap_or(1).clamp(1, 60))).await;
            }
            sent => return sent?.answer().await,
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let wrong = |error| Failure::Io(path.display().to_string(), error);
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(wrong)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(wrong(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {MAX_BYTES} bytes"))));
    }
    Ok(bytes)
}

/// Whether a file can be put there.
fn writable(path: &Path) -> Result<(), Failure> {
    let wrong = |error| Failure::Io(path.display().to_string(), error);
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(wrong(io::ErrorKind::IsADirectory.into())),
        Ok(_) => Ok(()),
        Err(_) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            fs::metadata(folder).map_err(wrong).and_then(|there| match there.is_dir() {
                true => Ok(()),
                false => Err(wrong(io::ErrorKind::NotADirectory.into())),
            })
        }
    }
}

/// Writes a file whole or not at all; a pipe or a device just gets it.
fn write(path: &Path, value: &serde_json::Value) -> Result<(), Failure> {
    let wrong = |error| Failure::Io(path.display().to_string(), error);
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| wrong(error.into()))?;
    text.push(b'\n');
    match fs::metadata(path) {
        Ok(there) if !there.is_file() => fs::write(path, text).map_err(wrong),
        _ => skip_tables::replace_file(path, &text, false).map(drop).map_err(wrong),
    }
}
