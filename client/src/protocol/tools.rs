//! Functions a model may call, how it is to choose, and the calls it makes.

use super::error::{Error, ErrorKind};
use super::fields::Fields;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Longest name of a function.
const MAX_NAME: usize = 64;

/// A function as OpenAI describes it: `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`. The template gets
/// it as it came.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Tool(Map<String, Value>);

impl Tool {
    /// A function with a schema of its arguments, an object's.
    pub fn function(name: &str, description: &str, parameters: Value) -> Self {
        let mut function = Map::new();
        function.insert("name".into(), name.into());
        function.insert("description".into(), description.into());
        function.insert("parameters".into(), parameters);
        let mut tool = Map::new();
        tool.insert("type".into(), "function".into());
        tool.insert("function".into(), function.into());
        Self(tool)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.field("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// The schema of its arguments; None admits any object.
    pub fn parameters(&self) -> Option<&Value> {
        self.field("parameters").filter(|schema| !schema.is_null())
    }

    /// Whether its arguments are to be as the schema says even where the model chooses to call.
    pub fn is_strict(&self) -> bool {
        self.field("strict") == Some(&Value::Bool(true))
    }

    fn field(&self, name: &str) -> Option<&Value> {
        self.0.get("function").and_then(|function| function.get(name))
    }

    /// `tools`; the error names the tool and its field.
    pub(super) fn list(tools: Value) -> Result<Vec<Self>, Error> {
        let Value::Array(list) = tools else { return Err(Error::invalid("tools", "must be a list")) };
        let tools: Vec<Self> = list.into_iter().enumerate().map(|(i, tool)| Self::read(i, tool)).collect::<Result<_, _>>()?;
        for (i, tool) in tools.iter().enumerate() {
            if tools[..i].iter().any(|other| other.name() == tool.name()) {
                return Err(Error::invalid(format!("tools[{i}].function.name"), format!("`{}` is there twice", tool.name())));
            }
        }
        Ok(tools)
    }

    fn read(index: usize, tool: Value) -> Result<Self, Error> {
        let place = format!("tools[{index}]");
        let Value::Object(object) = tool else { return Err(Error::invalid(place, "must be an object")) };
        let mut fields = Fields::within(&place, object.clone().into())?;
        let kind: String = fields.required("type")?;
        if kind != "function" {
            let words = format!("`{kind}` is not supported, only `function`");
            return Err(Error { kind: ErrorKind::Unsupported, ..Error::invalid(format!("{place}.type"), words) });
        }
        let mut function = fields.inner("function")?.ok_or_else(|| Error::invalid(format!("{place}.function"), "is required"))?;
        let name: String = function.required("name")?;
        let letter = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(letter) {
            let words = format!("must be 1 to {MAX_NAME} letters, digits, `_`, `-` and `.`");
            return Err(Error::invalid(format!("{place}.function.name"), words));
        }
        function.optional::<String>("description")?;
        function.optional::<Map<String, Value>>("parameters")?;
        function.optional::<bool>("strict")?;
        Ok(Self(object))
    }
}

/// OpenAI's `tool_choice`.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    /// No call; the model is not told of the functions.
    None,
    /// The model chooses. The default where there are tools.
    Auto,
    /// At least one call.
    Required,
    /// A call of this function, on the wire `{"type": "function", "function": {"name": …}}`.
    Function(String),
}

impl ToolChoice {
    pub(super) fn read(value: Value) -> Result<Self, Error> {
        match value {
            Value::String(word) => match word.as_str() {
                "none" => Ok(Self::None),
                "auto" => Ok(Self::Auto),
                "required" => Ok(Self::Required),
                _ => Err(Error::invalid("tool_choice", format!("`{word}` is none of `none`, `auto`, `required` and a function"))),
            },
            other => {
                let mut fields = Fields::within("tool_choice", other)?;
                let kind: String = fields.required("type")?;
                if kind != "function" {
                    let words = format!("`{kind}` is not supported, only `function`");
                    return Err(Error { kind: ErrorKind::Unsupported, ..Error::invalid("tool_choice.type", words) });
                }
                let mut function = fields.inner("function")?.ok_or_else(|| Error::invalid("tool_choice.function", "is required"))?;
                Ok(Self::Function(function.required("name")?))
            }
        }
    }
}

impl Serialize for ToolChoice {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Auto => serializer.serialize_str("auto"),
            Self::Required => serializer.serialize_str("required"),
            Self::Function(name) => serde_json::json!({"type": "function", "function": {"name": name}}).serialize(serializer),
        }
    }
}

/// A call the model made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// `call_…`, to be named by the message that holds its result.
    pub id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What is called.
    pub function: CalledFunction,
}

/// A function and what it is called with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CalledFunction {
    /// Its name.
    pub name: String,
    /// JSON as text. Where the answer was cut (`length`) it may end early.
    pub arguments: String,
}

/// What a piece of the answer adds to its calls: the first of a call has id and name, later ones more of the arguments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCallDelta {
    /// Which call, from 0.
    pub index: u32,
    /// Its id, in the first piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, in the first piece.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What is new.
    #[serde(default)]
    pub function: FunctionDelta,
}

/// What is new of a called function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionDelta {
    /// Its name, in the first piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More of the arguments.
    #[serde(default)]
    pub arguments: String,
}

impl ToolCallDelta {
    /// The first piece of a call.
    pub fn begin(index: u32, id: String, name: String) -> Self {
        let function = FunctionDelta { name: Some(name), arguments: String::new() };
        Self { index, id: Some(id), kind: Some("function".into()), function }
    }

    /// More of its arguments.
    pub fn more(index: u32, arguments: String) -> Self {
        Self { index, function: FunctionDelta { name: None, arguments }, ..Self::default() }
    }

    /// Adds it to the calls so far.
    pub fn add_to(self, calls: &mut Vec<ToolCall>) {
        let index = self.index as usize;
        if index >= calls.len() {
            // A peer that counts wildly does not make a list of its length.
            calls.push(ToolCall { kind: "function".into(), ..ToolCall::default() });
        }
        let last = calls.len() - 1;
        let call = &mut calls[index.min(last)];
        call.id.push_str(self.id.as_deref().unwrap_or_default());
        call.function.name.push_str(self.function.name.as_deref().unwrap_or_default());
        call.function.arguments.push_str(&self.function.arguments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tools_keep_what_they_came_with_and_a_wrong_one_is_named() {
        let value =
            json!({"type": "function", "function": {"description": "d", "name": "a.b-c", "parameters": {"type": "object"}, "x": 1}});
        let tools = Tool::list(json!([value])).unwrap();
        assert_eq!((tools[0].name(), serde_json::to_value(&tools[0]).unwrap()), ("a.b-c", value.clone()));
        for (wrong, name) in [
            (json!({}), "tools"),
            (json!([3]), "tools[0]"),
            (json!([value, {"type": "web_search"}]), "tools[1].type"),
            (json!([{"type": "function"}]), "tools[0].function"),
            (json!([{"type": "function", "function": {}}]), "tools[0].function.name"),
            (json!([{"type": "function", "function": {"name": "a b"}}]), "tools[0].function.name"),
            (json!([value, value]), "tools[1].function.name"),
            (json!([{"type": "function", "function": {"name": "f", "parameters": []}}]), "tools[0].function.parameters"),
            (json!([{"type": "function", "function": {"name": "f", "strict": 1}}]), "tools[0].function.strict"),
        ] {
            assert_eq!(Tool::list(wrong.clone()).unwrap_err().param.as_deref(), Some(name), "{wrong}");
        }
    }

    #[test]
    fn a_choice_is_a_word_or_a_function() {
        for value in [json!("none"), json!("auto"), json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
            assert_eq!(serde_json::to_value(ToolChoice::read(value.clone()).unwrap()).unwrap(), value);
        }
        for (value, name) in
            [(json!("any"), "tool_choice"), (json!(3), "tool_choice"), (json!({"type": "allowed_tools"}), "tool_choice.type")]
        {
            assert_eq!(ToolChoice::read(value).unwrap_err().param.as_deref(), Some(name));
        }
    }

    #[test]
    fn pieces_make_calls() {
        let mut calls = Vec::new();
        ToolCallDelta::begin(0, "call_1".into(), "f".into()).add_to(&mut calls);
        ToolCallDelta::more(0, "{\"a\":".into()).add_to(&mut calls);
        ToolCallDelta::more(0, "1}".into()).add_to(&mut calls);
        ToolCallDelta::begin(4_000_000_000, "call_2".into(), "g".into()).add_to(&mut calls);
        assert_eq!(calls.len(), 2);
        assert_eq!(calls[0].function, CalledFunction { name: "f".into(), arguments: "{\"a\":1}".into() });
        assert_eq!((calls[1].id.as_str(), calls[1].kind.as_str()), ("call_2", "function"));
    }
}
