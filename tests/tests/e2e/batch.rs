//! `skipctl run`: Edge-LLM's input.json to output.json, over the socket and the bus.

use serde_json::{Value, json};
use skip_tests::process::{binary, run};
use skip_tests::{Daemon, Options};
use std::process::Command;

fn ask(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

#[test]
fn a_file_of_requests_is_answered_in_order_and_failures_stand_in_their_place() {
    let daemon = Daemon::start(Options::default().flags(&["--queue", "1", "--max-running", "1"])).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [input, output, profile] = ["input.json", "output.json", "profile.json"].map(|name| dir.path().join(name).display().to_string());
    let image = json!({"messages": [{"role": "user", "content": [{"type": "image", "image": "a.jpg"}]}]});
    let mut stopped = ask("Count from one to ten in words.");
    stopped["stop"] = json!(["three", "Three"]);
    let mut requests = vec![ask("What is the capital of France?"), image, stopped, ask(&crate::prose(200_000))];
    requests.extend((0..6).map(|i| ask(&format!("Say {i}"))));
    let file = json!({"batch_size": 4, "temperature": 0, "top_k": 1, "max_generate_length": 12, "num_logprobs": 2, "comment": "a test",
        "requests": requests});
    std::fs::write(&input, file.to_string()).unwrap();

    let args = [
        "run",
        "--inputFile",
        &input,
        "--outputFile",
        &output,
        "--engineDir",
        "engines/x",
        "--warmup",
        "1",
        "--dumpProfile",
        "--profileOutputFile",
        &profile,
    ];
    let told = daemon.skipctl(&args).unwrap();
    assert_eq!(told.code, Some(4), "{told:?}");
    for words in [
        "comment is not read",
        "--engine-dir is not read",
        "2 of 10 requests failed; the first: requests[1].messages[0].content",
        "wall clock",
    ] {
        assert!(told.stderr.contains(words), "{words}: {}", told.stderr);
    }
    let read = |path: &str| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let written = read(&output);
    assert_eq!(written["input_file"], input.as_str());
    let responses = written["responses"].as_array().unwrap();
    for (index, response) in responses.iter().enumerate() {
        assert_eq!((response["request_idx"].as_u64(), response["batch_idx"].as_u64()), (Some(index as u64), Some(index as u64 % 4)));
        let failed = matches!(index, 1 | 3);
        assert_eq!(response["output_text"] == "TensorRT Edge LLM cannot handle this request. Fails.", failed, "{response}");
        assert_eq!(response["finish_reason"] == "error" && response["error"]["message"].is_string(), failed, "{response}");
    }
    assert_eq!(responses.len(), 10);
    assert!(responses[0]["output_text"].as_str().unwrap().contains("Paris"), "{}", responses[0]);
    assert_eq!(responses[0]["logprobs"][0].as_array().unwrap().len(), 2);
    assert_eq!(responses[3]["error"]["code"], "context_length_exceeded");
    assert!(!responses[2]["output_text"].as_str().unwrap().to_lowercase().contains("three"));
    assert_eq!(read(&profile)["generation"]["total_runs"], 8, "the warm-up is left out");

    // Over the bus, without the template: the same words as a plain completion.
    let raw = json!({"temperature": 0, "apply_chat_template": false, "requests": [ask("The capital of France is")]});
    std::fs::write(&input, raw.to_string()).unwrap();
    let address = daemon.bus().address();
    let args = ["--bus", &address, "run", "--input-file", &input, "--output-file", &output, "--max-generate-length", "5"];
    run(Command::new(binary("skipctl").unwrap()).args(args)).unwrap().ok().unwrap();
    let plain =
        daemon.http().post("/v1/completions", crate::completion("The capital of France is", 5).to_string()).unwrap().expect(200).unwrap();
    let response = &read(&output)["responses"][0];
    assert_eq!(response["output_text"].as_str(), Some(crate::text(&plain)));
    assert_eq!(
        (&response["finish_reason"], &response["formatted_complete_request"]),
        (&json!("length"), &json!("The capital of France is"))
    );
}

#[test]
fn what_is_wrong_for_all_leaves_the_output_as_it_was() {
    let daemon = Daemon::shared();
    let dir = tempfile::tempdir().unwrap();
    let [input, output] = ["input.json", "output.json"].map(|name| dir.path().join(name).display().to_string());
    std::fs::write(&output, "before").unwrap();
    let code = |file: Value, output: &str| {
        std::fs::write(&input, file.to_string()).unwrap();
        daemon.skipctl(&["run", "--input-file", &input, "--output-file", output]).unwrap()
    };
    let refused = code(json!({"enable_thinking": true, "requests": [ask("a")]}), &output);
    assert_eq!(refused.code, Some(4));
    assert!(refused.stderr.contains("enable_thinking"), "{}", refused.stderr);
    assert_eq!(code(json!({"requests": [ask("a")]}), "/nonexistent/output.json").code, Some(1));
    let args = ["--socket", "/nonexistent/skipd.sock", "run", "--input-file", &input, "--output-file", &output];
    assert_eq!(run(Command::new(binary("skipctl").unwrap()).args(args)).unwrap().code, Some(3));
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "before");
}
