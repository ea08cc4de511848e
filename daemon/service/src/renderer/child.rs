//! The process that renders: `skipd --render-child FOLDER`, for [`super::Renderer`] alone. It ends with its parent, and where it asks for too much.

use super::MEMORY_MIB;
use super::wire::{Answer, Hello, Job};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use skip_engine::template::{ChatTemplate, RenderOptions, TemplateError};
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};

/// The first argument of such a process; the second is the checkpoint's folder, and a third may be `probe`.
pub const FLAG: &str = "--render-child";
/// The form of calls is wanted too, for which the template renders a few conversations.
pub(super) const PROBE: &str = "probe";
/// The stack that templates are compiled and rendered on: address space, which counts against the limit.
const STACK_MIB: u64 = 1024;

/// Compiles the template and renders what comes on standard input, a job a line.
pub fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(dir) = args.next() else {
        eprintln!("skipd {FLAG}: it is started by skipd itself");
        return ExitCode::from(2);
    };
    if let Err(error) = limit_itself() {
        tell(&Hello::Failed { reason: format!("the process that renders the chat template cannot be limited: {error}") }, b"");
        return ExitCode::FAILURE;
    }
    let probe = args.next().is_some_and(|word| word == PROBE);
    let (jobs, inbox) = sync_channel::<Vec<u8>>(1);
    std::thread::spawn(move || {
        // Nothing else is left to do where the daemon does not listen any more.
        serve(Path::new(&dir), probe, &inbox);
        std::process::exit(0);
    });
    // Read here all the time: the end of the input is the end of the daemon, whatever a template is at.
    let mut input = std::io::stdin().lock();
    loop {
        let mut line = Vec::new();
        match input.read_until(b'\n', &mut line) {
            Ok(n) if n > 0 && jobs.send(line).is_ok() => {}
            _ => return ExitCode::SUCCESS,
        }
    }
}

/// Memory as agreed, no file of the memory left behind, and the first to go where the machine runs out of it.
fn limit_itself() -> std::io::Result<()> {
    let limit = |bytes: u64| Rlimit { current: Some(bytes), maximum: Some(bytes) };
    let wanted = (STACK_MIB + MEMORY_MIB) << 20;
    let allowed = getrlimit(Resource::As).maximum.map_or(wanted, |maximum| wanted.min(maximum));
    setrlimit(Resource::As, limit(allowed))?;
    setrlimit(Resource::Core, limit(0))?;
    // A system without it has other ways to choose.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}

fn serve(dir: &Path, probe: bool, inbox: &Receiver<Vec<u8>>) {
    let (hello, template) = match ChatTemplate::open(dir) {
        Ok(Some(template)) => {
            let calls = if probe { template.calls() } else { None };
            (Hello::Ready { template: template.file().to_owned(), calls }, Some(template))
        }
        Ok(None) => (Hello::None, None),
        Err(error) => (Hello::Failed { reason: error.to_string() }, None),
    };
    let listens = tell(&hello, b"");
    let Some(template) = template.filter(|_| listens) else { return };
    for job in inbox {
        let (answer, text) = match render(&template, &job) {
            Ok(text) => (Answer::Text { bytes: text.len() }, text),
            Err((param, message)) => (Answer::Refused { param, message }, String::new()),
        };
        drop(job);
        if !tell(&answer, text.as_bytes()) {
            return;
        }
    }
}

/// The text, or the field at fault and words.
fn render(template: &ChatTemplate, job: &[u8]) -> Result<String, (String, String)> {
    let Job { messages, tools } = serde_json::from_slice(job).map_err(|e| ("messages".to_owned(), e.to_string()))?;
    let tools = (!tools.is_empty()).then_some(tools.as_slice());
    let options = RenderOptions { tools, add_generation_prompt: true, ..RenderOptions::default() };
    template.render(&messages, &options).map_err(|error| match &error {
        TemplateError::Message { index, field, .. } => (format!("messages[{index}].{field}"), error.to_string()),
        _ => ("messages".to_owned(), format!("{}: {error}", template.file())),
    })
}

/// False where nobody listens any more.
fn tell(line: &impl serde::Serialize, text: &[u8]) -> bool {
    let told = || -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        out.write_all(&line)?;
        out.write_all(text)?;
        out.flush()
    };
    told().is_ok()
}
