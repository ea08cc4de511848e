//! Pinning prefixes, whatever asks: what is pinned is tokens, as the requests that begin with them will have them.

use crate::generation;
use crate::peer::{Peer, Right};
use crate::state::{Daemon, Model};
use crate::text::TextModel;
use skip_client::protocol::{ChatMessage, PinPrefix, Prefix, PrefixList, Prompt, Tool};
use skip_client::{Error, ErrorKind};
use skip_engine::handle::ClientId;
use skip_engine::prefix::{NewPrefix, PrefixError, PrefixInfo};

/// Pins a prefix for everybody; answers when it is computed.
///
/// # Errors
/// Access, a daemon that is not ready, a prefix without a whole page, no room with the numbers. Nothing is pinned then.
pub async fn pin(daemon: &Daemon, peer: &Peer, wanted: PinPrefix) -> Result<Prefix, Error> {
    daemon.authority.check(peer, Right::Control)?;
    let model = daemon.ready_model()?;
    let param = if wanted.messages.is_empty() { "prompt" } else { "messages" };
    let name = match wanted.name.clone() {
        Some(name) => name,
        None => free_name(&model).await?,
    };
    let tokens = tokens(&model, wanted).await?;
    let new = NewPrefix { name, tokens, owner: ClientId(peer.id()) };
    let pinned = model.engine.pin(new).await.map_err(|error| refusal(error, param))?;
    tracing::info!(name = pinned.name, tokens = pinned.tokens, "a prefix is pinned");
    Ok(prefix(pinned))
}

/// The pinned prefixes, for everybody to see: no word of them is in the list.
///
/// # Errors
/// No model is there, or its engine has ended.
pub async fn list(daemon: &Daemon) -> Result<PrefixList, Error> {
    let model = daemon.ready_model()?;
    let prefixes = model.engine.prefixes().await.map_err(|error| refusal(error, "prompt"))?;
    Ok(PrefixList { prefixes: prefixes.into_iter().map(prefix).collect(), limit_pages: model.engine.status().pages_pinnable })
}

/// Drops a pinned prefix, and gives what it was.
///
/// # Errors
/// Access; none of that name is pinned.
pub async fn drop_one(daemon: &Daemon, peer: &Peer, name: &str) -> Result<Prefix, Error> {
    daemon.authority.check(peer, Right::Control)?;
    let dropped = daemon.ready_model()?.engine.unpin(name).await.map_err(|error| refusal(error, "prompt"))?;
    dropped.map(prefix).ok_or_else(|| Prefix::unknown(name))
}

async fn free_name(model: &Model) -> Result<String, Error> {
    let taken = model.engine.prefixes().await.map_err(|error| refusal(error, "prompt"))?;
    let free = |name: &String| taken.iter().all(|prefix| prefix.name != *name);
    // One more than there are prefixes: one of them is free.
    Ok((1..=taken.len() + 1).map(|n| format!("prefix-{n}")).find(free).unwrap_or_default())
}

async fn tokens(model: &Model, wanted: PinPrefix) -> Result<Vec<u32>, Error> {
    let text = model.text.clone();
    if !wanted.tools.is_empty() && !text.calls() {
        return Err(Error::new(ErrorKind::Unsupported, "the model's chat template does not tell it of functions").at("tools"));
    }
    let task = tokio::task::spawn_blocking(move || match wanted.prompt {
        Some(Prompt::Text(prompt)) => text.encode(&prompt),
        Some(Prompt::Tokens(ids)) => Ok(ids),
        None => beginning(&*text, &wanted.messages, &wanted.tools),
    });
    task.await.map_err(|_| Error::new(ErrorKind::Internal, "the tokenizer failed"))?
}

/// What all conversations that go on from `messages` begin with: what two of them have in common.
fn beginning(text: &dyn TextModel, messages: &[ChatMessage], tools: &[Tool]) -> Result<Vec<u32>, Error> {
    let next = if messages.last().is_some_and(|message| message.role == "user") { "assistant" } else { "user" };
    let going_on = |word: &str| {
        let conversation: Vec<ChatMessage> = messages.iter().cloned().chain([ChatMessage::new(next, word)]).collect();
        text.encode_chat(&conversation, tools)
    };
    let (mut one, other) = (going_on("0")?, going_on("x")?);
    one.truncate(one.iter().zip(&other).take_while(|(a, b)| a == b).count());
    Ok(one)
}

fn prefix(info: PrefixInfo) -> Prefix {
    let PrefixInfo { name, tokens, pages, held, owner, hits } = info;
    Prefix { name, tokens, pages, held, owner: owner.0, hits }
}

fn refusal(error: PrefixError, param: &str) -> Error {
    let new = |kind| Error::new(kind, error.to_string());
    match &error {
        PrefixError::TooShort { tokens } => new(ErrorKind::InvalidRequest).at(param).with("tokens", *tokens as u64),
        PrefixError::NoRoom { needed, pinned, limit } => {
            let numbers = [("pages_needed", needed), ("pages_pinned", pinned), ("pages_limit", limit)];
            numbers.into_iter().fold(new(ErrorKind::CacheTooSmall), |error, (key, &pages)| error.with(key, pages as u64))
        }
        PrefixError::NameTaken(_) => new(ErrorKind::InvalidRequest).at("name"),
        PrefixError::AlreadyPinned(_) => new(ErrorKind::InvalidRequest).at(param),
        PrefixError::TooMany => new(ErrorKind::CacheTooSmall),
        PrefixError::Refused(refused) => generation::refusal(refused.clone(), None),
        PrefixError::NotComputed { reason, .. } => new(generation::reason(*reason).error_kind().unwrap_or(ErrorKind::Internal)),
        _ => new(ErrorKind::Internal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use serde_json::json;
    use std::time::Duration;

    fn pin_of(body: serde_json::Value) -> PinPrefix {
        PinPrefix::from_json(body.to_string().as_bytes()).unwrap()
    }

    #[tokio::test]
    async fn a_conversations_beginning_is_pinned_as_far_as_all_that_go_on_from_it_have_it() {
        let daemon = testing::daemon(Duration::ZERO).await;
        let text = "x".repeat(300);
        let pinned = pin(&daemon, &testing::myself(), pin_of(json!({"messages": [{"role": "system", "content": text}]}))).await.unwrap();
        // `system:…\nuser:` are 313 bytes.
        assert_eq!((pinned.name.as_str(), pinned.tokens, pinned.pages, pinned.held), ("prefix-1", 256, 2, 2));
        let ask = |content: &str| generation::Ask {
            id: crate::request_id::RequestId::new(None),
            model: None,
            input: generation::Input::Chat(vec![ChatMessage::new("system", text.clone()), ChatMessage::new("user", content)]),
            options: skip_client::protocol::GenerationOptions { max_tokens: Some(2), ..Default::default() },
        };
        for content in ["Hello", "Is it?"] {
            let mut running = generation::start(&daemon, &testing::myself(), ask(content)).await.unwrap();
            while let Some(event) = running.next().await {
                if let generation::Event::End(end) = event {
                    assert_eq!(end.usage.skipd.reused_tokens, 256);
                }
            }
        }
        assert_eq!(list(&daemon).await.unwrap().prefixes[0].hits, 2);
    }

    #[tokio::test]
    async fn what_is_refused_names_its_field_and_its_numbers_and_pins_nothing() {
        let daemon = testing::daemon(Duration::ZERO).await;
        let me = testing::myself();
        let refused = async |body| pin(&daemon, &me, pin_of(body)).await.unwrap_err();
        assert_eq!(refused(json!({"prompt": "short"})).await.param.as_deref(), Some("prompt"));
        let none = pin(&daemon, &Peer::User { uid: me.id() + 1, groups: Vec::new() }, pin_of(json!({"prompt": "x"}))).await.unwrap_err();
        assert_eq!(none.kind, ErrorKind::AccessDenied);
        let limit = list(&daemon).await.unwrap().limit_pages;
        let error = refused(json!({"prompt": vec![5; 128 * (limit as usize + 1)]})).await;
        assert_eq!((error.kind, &error.details["pages_limit"]), (ErrorKind::CacheTooSmall, &json!(limit)));
        assert!(list(&daemon).await.unwrap().prefixes.is_empty());
        let one = json!({"prompt": vec![5; 128], "name": "one"});
        pin(&daemon, &me, pin_of(one.clone())).await.unwrap();
        assert_eq!(refused(one).await.param.as_deref(), Some("name"));
        assert_eq!(refused(json!({"prompt": vec![5; 130]})).await.param.as_deref(), Some("prompt"));
        assert_eq!(drop_one(&daemon, &me, "one").await.unwrap().pages, 1);
        assert_eq!(drop_one(&daemon, &me, "one").await.unwrap_err().kind, ErrorKind::NotFound);
    }
}
