use super::*;
use serde_json::json;

const SMOLLM2: &str = include_str!("../../../../tests/data/templates/smollm2.jinja");
const QWEN2: &str = include_str!("../../../../tests/data/templates/qwen2.5-coder.jinja");

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
