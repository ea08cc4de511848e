//! Forms of answers, compiled beside the engine: on threads of their own, a few at once, and given up where one takes too long.

use crate::text::TextModel;
use skip_client::{Error, ErrorKind};
use skip_engine::grammar::{Grammar, GrammarError, Grammars, Spec};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Forms that are compiled at once.
const PLACES: usize = 2;
/// How long one may take; most take milliseconds, the first of all some tenths of a second more.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of a compiling thread: schemas nest. Address space, used as it is needed.
const STACK: usize = 64 << 20;
/// Functions that are looked through for the one at fault.
const SEARCHED: usize = 32;

/// Compiles forms for one model.
pub struct Forms {
    inner: Arc<Inner>,
    places: Arc<Semaphore>,
}

struct Inner {
    text: Arc<dyn TextModel>,
    eos: Vec<u32>,
    /// Made for the first form: a model that is never asked for one does without.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
}

impl Forms {
    /// For a model's vocabulary and its end-of-sequence ids.
    pub fn new(text: Arc<dyn TextModel>, eos: &[u32]) -> Self {
        let inner = Inner { text, eos: eos.to_vec(), grammars: OnceLock::new() };
        Self { inner: Arc::new(inner), places: Arc::new(Semaphore::new(PLACES)) }
    }

    /// A form at its beginning; `param` is the field it came by.
    ///
    /// # Errors
    /// What of it cannot be kept to, as [`ErrorKind::Unsupported`]; [`ErrorKind::Busy`] where others take all places.
    pub async fn compile(&self, spec: Spec, param: &'static str) -> Result<Grammar, Error> {
        let busy = || Error::new(ErrorKind::Busy, "other requests' forms are being compiled").at(param).with("retry_after_s", 1);
        let place = tokio::time::timeout(PATIENCE, self.places.clone().acquire_owned()).await;
        let place = place.map_err(|_| busy())?.map_err(|_| busy())?;
        let (tell, told) = oneshot::channel();
        let inner = self.inner.clone();
        let thread = std::thread::Builder::new().name("form".into()).stack_size(STACK);
        let started = thread.spawn(move || {
            // Whoever asked may have left or given up.
            let _ = tell.send(inner.compile(&spec));
            // One that goes on behind its time keeps its place until it ends.
            drop(place);
        });
        started.map_err(|error| Error::new(ErrorKind::Internal, format!("no thread to compile a form on: {error}")))?;
        match tokio::time::timeout(PATIENCE, told).await {
            Ok(Ok(compiled)) => compiled.map_err(|(error, place)| refusal(&error, param, place)),
            Ok(Err(_)) => Err(Error::new(ErrorKind::Internal, "compiling the form failed").at(param)),
            Err(_) => Err(Error::new(ErrorKind::Unsupported, format!("takes longer than {PATIENCE:?} to compile")).at(param)),
        }
    }
}

impl Inner {
    /// The form, or what is wrong with it and which function's it is.
    fn compile(&self, spec: &Spec) -> Result<Grammar, (GrammarError, Option<usize>)> {
        let grammars = self.grammars.get_or_init(|| Grammars::new(&*self.text, self.text.tokens(), &self.eos));
        let grammars = grammars.as_ref().map_err(|error| (error.clone(), None))?;
        grammars.compile(spec).map_err(|error| match spec {
            Spec::Calls { form, functions, .. } if functions.len() <= SEARCHED => {
                let alone =
                    |i: usize| Spec::Calls { form: form.clone(), functions: vec![functions[i].clone()], several: false, text: false };
                let wrong = (0..functions.len()).find_map(|i| grammars.compile(&alone(i)).err().map(|error| (error, Some(i))));
                wrong.unwrap_or((error, None))
            }
            _ => (error, None),
        })
    }
}

fn refusal(error: &GrammarError, param: &str, function: Option<usize>) -> Error {
    let kind = if matches!(error, GrammarError::Vocabulary(_)) { ErrorKind::Internal } else { ErrorKind::Unsupported };
    let place = function.map_or_else(|| param.to_owned(), |i| format!("tools[{i}].function.parameters"));
    Error::new(kind, format!("the answer cannot be held to this form: {error}")).at(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ByteText;
    use serde_json::json;
    use skip_engine::grammar::Function;

    #[tokio::test]
    async fn a_form_is_compiled_or_refused_at_its_field() {
        let forms = Forms::new(Arc::new(ByteText::default()), &[0]);
        assert!(forms.compile(Spec::Regex("a+".into()), "structured_outputs.regex").await.is_ok());
        let error = forms.compile(Spec::Regex("(".into()), "structured_outputs.regex").await.unwrap_err();
        assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::Unsupported, Some("structured_outputs.regex")));
        let function = |name: &str, arguments| Function { name: name.into(), arguments: Some(arguments) };
        let functions = vec![function("f", json!({"type": "object"})), function("g", json!({"type": "object", "propertyNames": {}}))];
        let form = skip_engine::calls::CallForm::hermes();
        let error = forms.compile(Spec::Calls { form, functions, several: true, text: false }, "tools").await.unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools[1].function.parameters"));
        assert!(error.message.contains("propertyNames"), "{error}");
    }
}
