//! `top`: looks at the daemon again and again, and shows what changes in place.

mod view;

use super::Context;
use crate::failure::Failure;
use crate::output;
use skip_client::Client;
use skip_client::protocol::{Activity, Status};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// One look.
#[derive(serde::Serialize)]
struct Look {
    status: Status,
    activity: Activity,
}

impl Look {
    async fn at(client: &Client) -> Result<Self, Failure> {
        Ok(Self { status: client.status().await?, activity: client.activity().await? })
    }
}

pub async fn run(context: &Context, once: bool, interval: Duration) -> Result<(), Failure> {
    let client = context.connect().await?;
    let first = Look::at(&client).await?;
    if once || context.json || !io::stdout().is_terminal() {
        return context.show(&first, |look| view::frame(&look.status, &look.activity, None, usize::MAX));
    }
    tokio::select! {
        result = watch(&client, first, interval) => result,
        // The way to end it: nothing was interrupted.
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn watch(client: &Client, first: Look, interval: Duration) -> Result<(), Failure> {
    let mut screen = Screen::take()?;
    let (mut before, mut now) = (None, first);
    loop {
        // Asked each time: it may have been resized. The line behind the last must not scroll the first away.
        let lines = usize::from(console::Term::stdout().size().0).saturating_sub(1);
        screen.show(&view::frame(&now.status, &now.activity, before.as_ref(), lines))?;
        tokio::time::sleep(interval).await;
        before = Some(std::mem::replace(&mut now, Look::at(client).await?).activity);
    }
}

/// The terminal's second screen, given back when dropped.
struct Screen;

impl Screen {
    /// Without cursor, and lines cut at its edge.
    fn take() -> Result<Self, Failure> {
        write("\x1b[?1049h\x1b[?25l\x1b[?7l")?;
        Ok(Self)
    }

    /// In place of what is there, line by line, so that nothing flickers.
    fn show(&mut self, text: &str) -> Result<(), Failure> {
        let lines: String = text.lines().map(|line| format!("{}\x1b[K\n", output::printable(line))).collect();
        write(&format!("\x1b[H{lines}\x1b[J"))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = write("\x1b[?7h\x1b[?25h\x1b[?1049l");
    }
}

fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
