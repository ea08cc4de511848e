//! Pinning prefixes, whatever asks: what is pinned is tokens, as the requests that begin with them will have them.

use crate::generation;
use crate::peer::{Peer, Right};
use crate::request_id::RequestId;
use crate::state::{Daemon, Model};
use crate::text::TextModel;
use skip_client::protocol::{ChatMessage, PinPrefix, Prefix, PrefixList, Prompt, Tool};
use skip_client::{Error, ErrorKind};
use skip_engine::handle::ClientId;
use skip_engine::prefix::{MAX_PREFIXES, NewPrefix, PrefixError, PrefixInfo};

/// Pins a prefix for everybody; answers when it is computed. Until then it is among the requests under way, called `id`.
///
/// # Errors
/// Access, a daemon that is not ready, a prefix without a whole page, no room with the numbers. Nothing is pinned then.
pub async fn pin(daemon: &Daemon, peer: &Peer, id: RequestId, wanted: PinPrefix) -> Result<Prefix, Error> {
    daemon.authority.check(peer, Right::Control)?;
    let model = daemon.ready_model()?;
    let param = if wanted.messages.is_empty() { "prompt" } else { "messages" };
    let (named, owner) = (wanted.name.clone(), ClientId(peer.id()));
    let tokens = tokens(&model, wanted).await?;
    let refusal = |error| refusal(error, param);
    let pinning = loop {
        let name = match named.clone() {
            Some(name) => name,
            None => free_name(&model).await?,
        };
        match model.engine.pin(NewPrefix { name, tokens: tokens.clone(), owner }).await {
            // Another got the free name first, and there are only so many.
            Err(PrefixError::NameTaken(_)) if named.is_none() => {}
            begun => break begun.map_err(refusal)?,
        }
    };
    let _named = daemon.names.enter(pinning.id(), id);
    let pinned = pinning.done().await.map_err(refusal)?;
    tracing::info!(name = pinned.name, tokens = pinned.tokens, "a prefix is pinned");
    Ok(prefix(pinned))
}

/// The pinned prefixes, for everybody to see: no word of them is in the list.
///
/// # Errors
/// No model is there, or its engine has ended.
pub async fn list(daemon: &Daemon) -> Result<PrefixList, Error> {
    let model = daemon.serving_model()?;
    let prefixes = model.engine.prefixes().await.map_err(|error| refusal(error, "prompt"))?;
    Ok(PrefixList { prefixes: prefixes.into_iter().map(prefix).collect(), limit_pages: model.engine.status().pages_pinnable })
}

/// Drops a pinned prefix, and gives what it was.
///
/// # Errors
/// Access; none of that name is pinned.
pub async fn drop_one(daemon: &Daemon, peer: &Peer, name: &str) -> Result<Prefix, Error> {
    daemon.authority.check(peer, Right::Control)?;
    let dropped = daemon.serving_model()?.engine.unpin(name).await.map_err(|error| refusal(error, "prompt"))?;
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
    if !wanted.tools.is_empty() && text.calls().is_none() {
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
    let PrefixInfo { serial: _, name, tokens, pages, held, owner, hits } = info;
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
        PrefixError::TooMany => {
            let [pinned, limit] = [MAX_PREFIXES; 2];
            new(ErrorKind::CacheTooSmall).with("prefixes_pinned", pinned as u64).with("prefixes_limit", limit as u64)
        }
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
        let pinned =
            pin(&daemon, &testing::myself(), RequestId::new(None), pin_of(json!({"messages": [{"role": "system", "content": text}]})))
                .await
                .unwrap();
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
        let refused = async |body| pin(&daemon, &me, RequestId::new(None), pin_of(body)).await.unwrap_err();
        assert_eq!(refused(json!({"prompt": "short"})).await.param.as_deref(), Some("prompt"));
        let outsider = Peer::User { uid: me.id() + 1, groups: Vec::new() };
        let none = pin(&daemon, &outsider, RequestId::new(None), pin_of(json!({"prompt": "x"}))).await.unwrap_err();
        assert_eq!(none.kind, ErrorKind::AccessDenied);
        let limit = list(&daemon).await.unwrap().limit_pages;
        let error = refused(json!({"prompt": vec![5; 128 * (limit as usize + 1)]})).await;
        assert_eq!((error.kind, &error.details["pages_limit"]), (ErrorKind::CacheTooSmall, &json!(limit)));
        assert!(list(&daemon).await.unwrap().prefixes.is_empty());
        let one = json!({"prompt": vec![5; 128], "name": "one"});
        pin(&daemon, &me, RequestId::new(None), pin_of(one.clone())).await.unwrap();
        assert_eq!(refused(one).await.param.as_deref(), Some("name"));
        assert_eq!(refused(json!({"prompt": vec![5; 130]})).await.param.as_deref(), Some("prompt"));
        assert_eq!(drop_one(&daemon, &me, "one").await.unwrap().pages, 1);
        assert_eq!(drop_one(&daemon, &me, "one").await.unwrap_err().kind, ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn a_pin_under_way_has_its_request_s_name() {
        let daemon = testing::daemon(Duration::from_millis(1)).await;
        let me = testing::myself();
        // It waits behind as many as may run.
        let mut others = Vec::new();
        for _ in 0..2 {
            let options = skip_client::protocol::GenerationOptions { max_tokens: Some(1000), ignore_eos: true, ..Default::default() };
            let input = generation::Input::Raw(Prompt::from("ab"));
            let ask = generation::Ask { id: RequestId::new(None), model: None, input, options };
            others.push(generation::start(&daemon, &me, ask).await.unwrap());
        }
        let listed = async || crate::activity::report(&daemon, &me).await.unwrap().requests.iter().any(|request| request.id == "mine");
        let looking = async {
            while !listed().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(others);
        };
        let pinning = pin(&daemon, &me, RequestId::new(Some("mine")), pin_of(json!({"prompt": vec![5; 256]})));
        let both = async { tokio::join!(pinning, looking) };
        let (pinned, ()) = tokio::time::timeout(Duration::from_secs(10), both).await.expect("it is listed, then pinned");
        assert_eq!(pinned.unwrap().pages, 2);
        assert!(!listed().await);
    }

    #[tokio::test]
    async fn several_that_come_at_once_without_a_name_all_get_one() {
        let daemon = testing::daemon(Duration::ZERO).await;
        let me = testing::myself();
        let one = async |token: u32| pin(&daemon, &me, RequestId::new(None), pin_of(json!({"prompt": vec![token; 128]}))).await;
        let (a, b, c) = tokio::join!(one(5), one(6), one(7));
        let mut names = [a, b, c].map(|pinned| pinned.unwrap().name);
        names.sort();
        assert_eq!(names, ["prefix-1", "prefix-2", "prefix-3"]);
    }

    #[tokio::test]
    async fn one_prefix_too_many_is_refused_with_the_numbers() {
        let error = refusal(PrefixError::TooMany, "prompt");
        assert_eq!((&error.details["prefixes_pinned"], &error.details["prefixes_limit"]), (&json!(64), &json!(64)));
        assert!(error.message.contains("64"), "{error}");
    }

    #[tokio::test]
    async fn a_daemon_that_drains_drops_and_lists_prefixes_and_pins_none() {
        let daemon = testing::daemon(Duration::from_millis(2)).await;
        let me = testing::myself();
        let one = |name: &str| pin_of(json!({"prompt": vec![5; 128], "name": name}));
        pin(&daemon, &me, RequestId::new(None), one("one")).await.unwrap();
        daemon.life.advance(crate::lifecycle::Stage::Draining);
        assert_eq!(list(&daemon).await.unwrap().prefixes.len(), 1);
        assert_eq!(pin(&daemon, &me, RequestId::new(None), one("two")).await.unwrap_err().kind, ErrorKind::Draining);
        assert_eq!(drop_one(&daemon, &me, "one").await.unwrap().pages, 1);
    }
}
