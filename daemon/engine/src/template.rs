//! A checkpoint's chat template, rendered as transformers renders it: Jinja with Python's string methods, in bounded work.

mod environment;
mod messages;
mod probe;
mod python_json;
mod room;
#[cfg(test)]
mod tests;

pub use messages::flatten_content;

use crate::calls::CallForm;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};
use serde_json::{Map, Value as Json};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest template; published ones have up to 30 kB. [`room`] has stack for what this many bytes can nest.
const MAX_TEMPLATE: usize = 256 << 10;
/// Longest file that may hold one: tokenizer_config.json lists added tokens too.
const MAX_FILE: u64 = 16 << 20;
const NAME: &str = "chat_template";
const FILE: &str = "chat_template.jinja";
/// Where older checkpoints have it.
const CONFIG: &str = "tokenizer_config.json";

/// Why a template could not be opened or rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {detail}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The template is not valid Jinja.
    #[error("the chat template does not compile: {0}")]
    Syntax(String),
    /// The template called `raise_exception`: it does not take this conversation.
    #[error("the chat template refuses the conversation: {0}")]
    Refused(String),
    /// The template asked for more work or output than is allowed.
    #[error("the chat template takes too much work")]
    TooMuchWork,
    /// Rendering failed otherwise.
    #[error("the chat template failed: {0}")]
    Render(String),
    /// A message is not of a form that can be rendered.
    #[error("messages[{index}].{field}: {detail}")]
    Message {
        /// Which message.
        index: usize,
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        detail: String,
    },
}

/// A compiled template and the special tokens it may write.
pub struct ChatTemplate {
    environment: Environment<'static>,
    specials: Map<String, Json>,
    file: &'static str,
}

/// What a conversation is rendered with besides its messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions<'a> {
    /// Tool descriptions as JSON, in the order of their keys.
    pub tools: Option<&'a [Json]>,
    /// End where the answer begins.
    pub add_generation_prompt: bool,
    /// More variables for the template (`enable_thinking`), as transformers' keyword arguments.
    pub extra: Map<String, Json>,
}

impl ChatTemplate {
    /// The template of a folder: `chat_template.jinja`, else `chat_template` in tokenizer_config.json (its `default` where there are
    /// several); None where there is neither.
    ///
    /// # Errors
    /// A file is unreadable, malformed or too large, or the template does not compile.
    pub fn open(dir: &Path) -> Result<Option<Self>, TemplateError> {
        let path = dir.join(CONFIG);
        let config = match read(&path)? {
            None => Map::new(),
            Some(bytes) => match serde_json::from_slice(&bytes) {
                Ok(Json::Object(map)) => map,
                Ok(_) => return Err(TemplateError::Malformed { path, detail: "not a JSON object".into() }),
                Err(e) => return Err(TemplateError::Malformed { path, detail: e.to_string() }),
            },
        };
        let own = dir.join(FILE);
        let (file, source) = match read(&own)? {
            Some(bytes) => {
                let source = String::from_utf8(bytes).map_err(|_| TemplateError::Malformed { path: own, detail: "not UTF-8".into() })?;
                (FILE, Some(source))
            }
            None => (CONFIG, template_of(&config).map_err(|detail| TemplateError::Malformed { path, detail })?),
        };
        let Some(source) = source else { return Ok(None) };
        Ok(Some(Self { file, ..Self::compile(source, special_tokens(&config))? }))
    }

    /// How it has functions called, found by rendering a conversation that calls one; None where it tells the model of none, or has them called
    /// in a form that is not known.
    pub fn calls(&self) -> Option<CallForm> {
        probe::calls(self)
    }

    /// The file it came from.
    pub fn file(&self) -> &'static str {
        self.file
    }

    /// Compiles a template; `specials` are variables such as `bos_token`.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn compile(source: String, specials: Map<String, Json>) -> Result<Self, TemplateError> {
        if source.len() > MAX_TEMPLATE {
            return Err(TemplateError::Syntax(format!("longer than {MAX_TEMPLATE} bytes")));
        }
        let mut environment = environment::new();
        let source = environment::without_generation_marks(&source);
        room::run(|| environment.add_template_owned(NAME, source))?.map_err(|e| TemplateError::Syntax(first_line(&e)))?;
        Ok(Self { environment, specials, file: FILE })
    }

    /// Renders a conversation. Each message is an object with `role` and `content` (a string, null, or a list of text parts), and
    /// whatever else the template reads (`tool_calls`, `name`).
    ///
    /// # Errors
    /// A malformed message, or the template's own refusal or failure.
    pub fn render(&self, messages: &[Json], options: &RenderOptions<'_>) -> Result<String, TemplateError> {
        room::run(|| self.render_here(messages, options))?
    }

    fn render_here(&self, messages: &[Json], options: &RenderOptions<'_>) -> Result<String, TemplateError> {
        let messages: Vec<Json> = messages.iter().enumerate().map(|(index, m)| messages::flattened(index, m)).collect::<Result<_, _>>()?;
        let mut variables = self.specials.clone();
        variables.extend(options.extra.clone());
        let context = context! {
            messages => Value::from(Serde(&messages)),
            tools => options.tools.map(|tools| Value::from(Serde(tools))),
            add_generation_prompt => options.add_generation_prompt,
            ..Value::from(Serde(&variables))
        };
        let template = self.environment.get_template(NAME).map_err(|e| TemplateError::Render(first_line(&e)))?;
        let mut out = environment::Bounded::default();
        match template.render_captured_to(context, &mut out) {
            Ok(_) => String::from_utf8(out.bytes).map_err(|e| TemplateError::Render(e.to_string())),
            Err(e) => Err(render_error(&e)),
        }
    }
}

fn render_error(error: &minijinja::Error) -> TemplateError {
    if let Some(message) = environment::raised(error) {
        return TemplateError::Refused(message);
    }
    match error.kind() {
        ErrorKind::OutOfFuel | ErrorKind::WriteFailure => TemplateError::TooMuchWork,
        _ => TemplateError::Render(first_line(error)),
    }
}

/// What and where, without the excerpt of variables that minijinja can print: they hold the conversation.
fn first_line(error: &minijinja::Error) -> String {
    error.to_string().lines().next().unwrap_or("unknown").to_owned()
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, TemplateError> {
    let io = |source| TemplateError::Io { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io)?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(TemplateError::Malformed { path: path.to_owned(), detail: format!("larger than {MAX_FILE} bytes") });
    }
    Ok(Some(bytes))
}

/// A string, or a list of `{name, template}` of which `default` counts.
fn template_of(config: &Map<String, Json>) -> Result<Option<String>, String> {
    match config.get("chat_template") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(source)) => Ok(Some(source.clone())),
        Some(Json::Array(list)) => list
            .iter()
            .find(|t| t["name"] == "default")
            .and_then(|t| t["template"].as_str())
            .map(|source| Some(source.to_owned()))
            .ok_or_else(|| "chat_template: no template named `default`".into()),
        Some(_) => Err("chat_template: neither a string nor a list".into()),
    }
}

/// `bos_token` and the like: strings, or objects with `content`.
fn special_tokens(config: &Map<String, Json>) -> Map<String, Json> {
    config
        .iter()
        .filter(|(key, _)| key.ends_with("_token"))
        .filter_map(|(key, value)| {
            let text = value.as_str().or_else(|| value["content"].as_str())?;
            Some((key.clone(), Json::from(text)))
        })
        .collect()
}
