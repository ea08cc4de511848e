use super::*;
use serde_json::json;

const SMOLLM2: &str = include_str!("../../../../tests/data/templates/smollm2.jinja");
const QWEN2: &str = include_str!("../../../../tests/data/templates/qwen2.5-coder.jinja");

/// The constructs of the templates that are published with Llama 3.2, Mistral 7B v0.3 and Gemma 3.
const LLAMA32: &str = include_str!("../../../../tests/data/templates/llama3.2.jinja");
const MISTRAL: &str = include_str!("../../../../tests/data/templates/mistral-v0.3.jinja");
const GEMMA3: &str = include_str!("../../../../tests/data/templates/gemma3.jinja");

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source.to_owned(), Map::new()).unwrap()
}

fn render(source: &str, messages: Json, options: &RenderOptions<'_>) -> Result<String, TemplateError> {
    template(source).render(messages.as_array().unwrap(), options)
}

fn asking() -> RenderOptions<'static> {
    RenderOptions { add_generation_prompt: true, ..Default::default() }
}

#[test]
fn smollm2_puts_its_own_system_message_first() {
    let text = render(SMOLLM2, json!([{"role": "user", "content": "Hi"}]), &asking()).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
}

/// As jinja2 renders it in the environment of transformers.
#[test]
fn qwen_lists_tools_in_the_order_of_their_keys_as_pythons_json() {
    let tools = [json!({"type": "function", "function": {"name": "grip", "description": "Öffnet <b> & \"so\"",
        "parameters": {"type": "object", "properties": {"force": {"type": "number", "default": 1.0}}, "required": []}}})];
    let options = RenderOptions { tools: Some(&tools), ..asking() };
    let text = render(QWEN2, json!([{"role": "user", "content": "Hold it"}]), &options).unwrap();
    assert_eq!(text, include_str!("../../../../tests/data/templates/qwen2.5-tools.txt"));
}

#[test]
fn qwen_renders_tool_calls_and_their_results() {
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hold it"},
        {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "grip", "arguments": {"force": 2}}}]},
        {"role": "tool", "content": "held"},
        {"role": "tool", "content": "warm"},
    ]);
    let text = render(QWEN2, messages, &asking()).unwrap();
    assert_eq!(text, include_str!("../../../../tests/data/templates/qwen2.5-tool-calls.txt"));
}

/// As jinja2 renders them in the environment of transformers.
#[test]
fn llama_and_mistral_render_tools_calls_and_their_results() {
    let tools = [json!({"type": "function", "function": {"name": "grip", "description": "Öffnet die Hand",
        "parameters": {"type": "object", "properties": {"force": {"type": "number", "default": 1.0}}, "required": []}}})];
    let call = json!({"id": "a1B2c3D4e", "type": "function", "function": {"name": "grip", "arguments": {"force": 2}}});
    let messages = json!([
        {"role": "user", "content": "Hold it"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a1B2c3D4e", "content": "held"},
    ]);
    let extra = json!({"date_string": "26 Jul 2024"}).as_object().unwrap().clone();
    let options = RenderOptions { tools: Some(&tools), extra, ..asking() };
    for (source, specials, expected) in [
        (LLAMA32, json!({"bos_token": "<|begin_of_text|>"}), include_str!("../../../../tests/data/templates/llama3.2-tools.txt")),
        (
            MISTRAL,
            json!({"bos_token": "<s>", "eos_token": "</s>"}),
            include_str!("../../../../tests/data/templates/mistral-v0.3-tools.txt"),
        ),
    ] {
        let template = ChatTemplate::compile(source.into(), specials.as_object().unwrap().clone()).unwrap();
        assert_eq!(template.render(messages.as_array().unwrap(), &options).unwrap(), expected);
    }
}

fn calls(source: &str) -> Option<CallForm> {
    let specials = json!({"bos_token": "<s>", "eos_token": "</s>"});
    ChatTemplate::compile(source.into(), specials.as_object().unwrap().clone()).unwrap().calls()
}

#[test]
fn the_form_of_calls_is_found_in_what_a_template_renders() {
    assert_eq!(calls(QWEN2), Some(CallForm::hermes()));
    let llama = CallForm {
        open: String::new(),
        key: "parameters".into(),
        close: String::new(),
        between: String::new(),
        several: false,
        ..CallForm::hermes()
    };
    assert_eq!(calls(LLAMA32), Some(llama.clone()));
    // As Llama 3.1 writes calls of what is built in.
    assert_eq!(calls(&LLAMA32.replace("'{\"name\": \"'", "'<|python_tag|>{\"name\": \"'")), Some(llama));
    let mistral = CallForm {
        open: "[TOOL_CALLS] ".into(),
        list: true,
        close: String::new(),
        between: ", ".into(),
        short_ids: true,
        ..CallForm::hermes()
    };
    assert_eq!(calls(MISTRAL), Some(mistral.clone()));
    // Nemo's has no space there.
    assert_eq!(
        calls(&MISTRAL.replace("[TOOL_CALLS] [", "[TOOL_CALLS][")),
        Some(CallForm { open: "[TOOL_CALLS]".into(), ..mistral.clone() })
    );
    let listed =
        MISTRAL.replace("\"[TOOL_CALLS] [\"", "\"<|tool_call|>[\"").replace("\"]\" + eos_token", "\"]<|/tool_call|>\" + eos_token");
    let tagged = CallForm { open: "<|tool_call|>".into(), close: "<|/tool_call|>".into(), ..mistral };
    assert_eq!(calls(&listed), Some(tagged));
    // An empty thought, as Qwen 3 puts before an answer.
    let thinking =
        QWEN2.replace("{{- '<|im_start|>' + message.role }}", "{{- '<|im_start|>' + message.role + '\n<think>\n\n</think>\n' }}");
    assert_ne!(thinking, QWEN2);
    assert_eq!(calls(&thinking), Some(CallForm::hermes()));
}

#[test]
fn a_form_of_calls_that_is_not_known_is_none() {
    for (source, why) in [
        (SMOLLM2.to_owned(), "it has no place for tools"),
        (GEMMA3.to_owned(), "it has no place for tools, and no role for their results"),
        (QWEN2.replace("for tool in tools", "for tool in []"), "it does not tell of them"),
        (QWEN2.replace("{{- '\\n<tool_call>\\n{\"name\": \"' }}", "{{- '\\n<tool_call>\\n<function=' }}"), "it writes XML"),
        (QWEN2.replace("\"arguments\": ' }}", "\"args\": ' }}"), "another key"),
        (MISTRAL.replace("[TOOL_CALLS] [", "Calls: ["), "words where a tag should be"),
        (
            MISTRAL.replace("{{- out[:-1] }}", "{{- tool_call.function.name + '[ARGS]' + tool_call.function.arguments|tojson }}"),
            "no object",
        ),
        (LLAMA32.replace("{{- '{\"name\": \"'", "{{- 'I call {\"name\": \"'"), "words before a call without a tag"),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}".to_owned(), "it refuses them"),
    ] {
        assert!(source != QWEN2 && source != MISTRAL && source != LLAMA32, "{why}");
        assert_eq!(calls(&source), None, "{why}");
    }
}

#[test]
fn text_parts_are_joined_and_others_refused_by_place_and_type() {
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert!(render(SMOLLM2, parts, &asking()).unwrap().contains("user\nab<|im_end|>"));
    let image = json!([{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "image_url"}]}]);
    let error = render(SMOLLM2, image, &asking()).unwrap_err();
    assert!(matches!(&error, TemplateError::Message { index: 1, field: "content", detail } if detail.contains("image_url")), "{error}");
}

#[test]
fn malformed_messages_are_refused() {
    for (message, field) in [(json!("hi"), "role"), (json!({"content": "x"}), "role"), (json!({"role": "user", "content": 3}), "content")] {
        let error = render(SMOLLM2, json!([message]), &asking()).unwrap_err();
        assert!(matches!(error, TemplateError::Message { index: 0, field: f, .. } if f == field), "{error}");
    }
}

#[test]
fn a_templates_own_refusal_carries_its_words() {
    let source = "{% if messages[0].role != 'user' %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}";
    let error = render(source, json!([{"role": "tool", "content": ""}]), &asking()).unwrap_err();
    assert!(matches!(&error, TemplateError::Refused(m) if m == "Conversation roles must alternate"), "{error}");
}

#[test]
fn special_tokens_and_extra_variables_reach_the_template() {
    let specials = special_tokens(json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null}).as_object().unwrap());
    let template = ChatTemplate::compile("{{ bos_token }}{{ eos_token }}{{ mood }}{{ pad_token is defined }}".into(), specials).unwrap();
    let options = RenderOptions { extra: Map::from_iter([("mood".into(), json!("calm"))]), ..Default::default() };
    assert_eq!(template.render(&[], &options).unwrap(), "<s></s>calmFalse");
}

#[test]
fn pythons_string_methods_and_loop_controls_work() {
    let source =
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content.strip().split(',')[-1].upper() }}{% endfor %}";
    let messages = json!([{"role": "user", "content": " a,b "}, {"role": "user", "content": "c"}]);
    assert_eq!(render(source, messages, &asking()).unwrap(), "B");
}

#[test]
fn blocks_are_trimmed_as_transformers_sets_jinja() {
    let source = "a\n  {% if true %}\nb\n  {% endif %}\nc\n";
    assert_eq!(render(source, json!([]), &asking()).unwrap(), "a\nb\nc");
}

#[test]
fn endless_work_and_endless_output_are_cut_off() {
    for source in [
        "{% for a in range(10000) %}{% for b in range(10000) %}{{ a }}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'x' * 100000000000 }}",
    ] {
        let error = render(source, json!([]), &asking()).unwrap_err();
        assert!(matches!(error, TemplateError::TooMuchWork | TemplateError::Render(_)), "{error}");
    }
}

#[test]
fn errors_do_not_quote_the_conversation() {
    let error = render("{{ messages[0].content + 1 }}", json!([{"role": "user", "content": "secret"}]), &asking()).unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
    assert!(!format!("{error:?}").contains("secret"), "{error:?}");
}

#[test]
fn a_folder_gives_the_file_before_the_key_and_the_default_of_several() {
    let dir = tempfile::tempdir().unwrap();
    assert!(ChatTemplate::open(dir.path()).unwrap().is_none());
    let config = json!({"bos_token": "<s>", "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ bos_token }}"}]});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let rendered = |dir: &Path| ChatTemplate::open(dir).unwrap().unwrap().render(&[], &asking()).unwrap();
    assert_eq!(rendered(dir.path()), "d<s>");
    std::fs::write(dir.path().join("chat_template.jinja"), "f{{ bos_token }}").unwrap();
    assert_eq!(rendered(dir.path()), "f<s>");
    std::fs::write(dir.path().join("chat_template.jinja"), "{% if %}").unwrap();
    assert!(matches!(ChatTemplate::open(dir.path()), Err(TemplateError::Syntax(_))));
}

/// What recurses in the compiler: as long as a template may be, and it is an answer or an error, never the end of the process.
#[test]
fn the_deepest_template_does_not_overflow_the_stack() {
    for (before, unit, after) in
        [("", "-", "1"), ("", "not ", "1"), ("a", ".b", ""), ("1", "+1", ""), ("a", "|e", ""), ("", "(", ""), ("a", "[0]", "")]
    {
        let room = MAX_TEMPLATE - 16 - before.len() - after.len();
        let source = format!("{{{{ {before}{}{after} }}}}", unit.repeat(room / unit.len()));
        // Whether it is valid does not matter here.
        let _ = ChatTemplate::compile(source, Map::new()).map(|template| template.render(&[], &asking()));
    }
    assert!(matches!(ChatTemplate::compile("x".repeat(MAX_TEMPLATE + 1), Map::new()), Err(TemplateError::Syntax(_))));
}

/// Values nested as deep as the fuel allows are printed, compared and dropped on a stack that holds them.
#[test]
fn the_deepest_value_does_not_overflow_the_stack() {
    let nest = "{% set ns = namespace(x=[], y=[]) %}{% for a in range(1000) %}{% for b in range(100) %}\
                {% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{% endfor %}";
    for use_of_it in ["{{ ns.x|tojson }}", "{{ ns.x }}", "{{ ns.x == ns.y }}", ""] {
        let _ = render(&format!("{nest}{use_of_it}"), json!([]), &asking());
    }
    let deep = render(&format!("{}{{{{ ns.x|tojson }}}}", nest.replace("1000", "100")), json!([]), &asking()).unwrap();
    assert_eq!(deep.len(), 2 * 10_001);
}

#[test]
fn json_that_doubles_without_end_is_too_much() {
    let source = "{% set ns = namespace(x=messages) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}";
    assert!(render(source, json!([{"role": "user", "content": "hi"}]), &asking()).is_err());
}

/// Found by fuzzing: the end was looked for from the opening's second character on.
#[test]
fn an_opening_that_is_its_own_end_is_a_syntax_error() {
    for source in ["{%}", "{% if x %}{%}", "{%%}", "{%"] {
        assert!(matches!(ChatTemplate::compile(source.into(), Map::new()), Err(TemplateError::Syntax(_))), "{source}");
    }
}

#[test]
fn openings_without_an_end_take_no_time() {
    let began = std::time::Instant::now();
    let _ = ChatTemplate::compile("{%".repeat(100_000) + "%}", Map::new());
    assert!(began.elapsed().as_secs() < 5);
}

#[test]
fn marks_for_training_say_nothing() {
    let marked = "{% for m in messages %}{%- generation -%}{{ m.content }} {% endgeneration %}{{ '{% generation %}' }}{% endfor %}";
    let text = render(marked, json!([{"role": "user", "content": "a"}]), &asking()).unwrap();
    assert!(text.starts_with("a "), "{text}");
}
