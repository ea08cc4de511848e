//! The form an answer is held to: OpenAI's `response_format`, vLLM's `structured_outputs`.

use super::error::{Error, ErrorKind};
use super::fields::Fields;
use serde::Serialize;
use serde_json::{Map, Value};

/// OpenAI's `response_format`. Whatever `strict` says, a schema is kept to in every token, and one that cannot be is refused.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Any text.
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema admits.
    JsonSchema {
        /// The schema and its name.
        json_schema: JsonSchema,
    },
}

/// A schema as OpenAI wraps it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JsonSchema {
    /// A name; not read. Default `answer`.
    pub name: String,
    /// JSON Schema, draft 2020-12 unless its `$schema` says another.
    pub schema: Value,
    /// Sent on by clients; the schema is kept to either way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// vLLM's `structured_outputs`: exactly one of its fields, `json`, `regex` or `choice`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StructuredOutputs {
    /// JSON that this schema admits; on the wire also as text.
    Json(Value),
    /// Text that this regular expression (Rust's syntax, without look-around) matches from beginning to end.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
}

impl ResponseFormat {
    /// A schema.
    pub fn schema(schema: Value) -> Self {
        Self::JsonSchema { json_schema: JsonSchema { name: "answer".into(), schema, strict: Some(true) } }
    }

    pub(super) fn take(mut fields: Fields) -> Result<Self, Error> {
        let kind: String = fields.required("type")?;
        match kind.as_str() {
            "text" => Ok(Self::Text),
            "json_object" => Ok(Self::JsonObject),
            "json_schema" => {
                let inner = fields.inner("json_schema")?.ok_or_else(|| Error::invalid("response_format.json_schema", "is required"))?;
                Ok(Self::JsonSchema { json_schema: JsonSchema::take(inner)? })
            }
            _ => {
                let words = format!("`{kind}` is not supported; `text`, `json_object` and `json_schema` are");
                Err(Error { kind: ErrorKind::Unsupported, ..Error::invalid("response_format.type", words) })
            }
        }
    }
}

impl JsonSchema {
    fn take(mut fields: Fields) -> Result<Self, Error> {
        let schema: Map<String, Value> = fields.required("schema")?;
        Ok(Self {
            name: fields.optional("name")?.unwrap_or_else(|| "answer".into()),
            schema: schema.into(),
            strict: fields.optional("strict")?,
        })
    }
}

impl StructuredOutputs {
    pub(super) fn take(mut fields: Fields) -> Result<Self, Error> {
        let json = match fields.optional::<Value>("json")? {
            Some(Value::String(text)) => {
                let read = serde_json::from_str(&text);
                Some(read.map_err(|error| Error::invalid("structured_outputs.json", format!("is text that is not JSON: {error}")))?)
            }
            schema => schema,
        };
        let forms = [json.map(Self::Json), fields.optional("regex")?.map(Self::Regex), fields.optional("choice")?.map(Self::Choice)];
        if let Some(name) = fields.rest().keys().next() {
            let words = format!("`{name}` is not supported; `json`, `regex` and `choice` are");
            return Err(Error { kind: ErrorKind::Unsupported, ..Error::invalid(format!("structured_outputs.{name}"), words) });
        }
        let mut forms = forms.into_iter().flatten();
        match (forms.next(), forms.next()) {
            (Some(form), None) => Ok(form),
            _ => Err(Error::invalid("structured_outputs", "needs exactly one of `json`, `regex` and `choice`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn format(value: Value) -> Result<ResponseFormat, Error> {
        ResponseFormat::take(Fields::within("response_format", value)?)
    }

    fn structured(value: Value) -> Result<StructuredOutputs, Error> {
        StructuredOutputs::take(Fields::within("structured_outputs", value)?)
    }

    #[test]
    fn each_form_is_read_and_written_back() {
        let wrapped = json!({"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "object"}, "strict": true}});
        for value in [json!({"type": "text"}), json!({"type": "json_object"}), wrapped] {
            assert_eq!(serde_json::to_value(format(value.clone()).unwrap()).unwrap(), value);
        }
        for value in [json!({"json": {"type": "object"}}), json!({"regex": "a+"}), json!({"choice": ["a", "b"]})] {
            assert_eq!(serde_json::to_value(structured(value.clone()).unwrap()).unwrap(), value);
        }
        assert_eq!(structured(json!({"json": "{\"type\": \"null\"}"})), Ok(StructuredOutputs::Json(json!({"type": "null"}))));
    }

    #[test]
    fn a_wrong_form_is_named() {
        for (value, name) in [
            (json!({}), "response_format.type"),
            (json!({"type": "xml"}), "response_format.type"),
            (json!({"type": "json_schema"}), "response_format.json_schema"),
            (json!({"type": "json_schema", "json_schema": {"name": "x"}}), "response_format.json_schema.schema"),
            (json!({"type": "json_schema", "json_schema": {"schema": "{}"}}), "response_format.json_schema.schema"),
        ] {
            assert_eq!(format(value.clone()).unwrap_err().param.as_deref(), Some(name), "{value}");
        }
        for (value, name) in [
            (json!({"grammar": "start: /a/"}), "structured_outputs.grammar"),
            (json!({}), "structured_outputs"),
            (json!({"regex": "a", "choice": ["a"]}), "structured_outputs"),
            (json!({"regex": 3}), "structured_outputs.regex"),
            (json!({"json": "{"}), "structured_outputs.json"),
        ] {
            assert_eq!(structured(value.clone()).unwrap_err().param.as_deref(), Some(name), "{value}");
        }
    }
}
