//! What RULER says to the model (github.com/NVIDIA/RULER, scripts/data/synthetic/constants.py, Apache-2.0): the wording is part of the tasks,
//! and scores are comparable only under the same.

/// The sentences of the noise haystack.
pub(super) const NOISE: &str = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/// One needle.
pub(super) fn needle(values: &str, key: &str, value: &str) -> String {
    format!("One of the special magic {values} for {key} is: {value}.")
}

/// The question of needles and the first words of its answer. One needle is asked for in the singular.
pub(super) fn needles(values: &str, context: &str, query: &str, single: bool) -> (String, String) {
    if single {
        let value = values.trim_end_matches('s');
        return (
            format!(
                "A special magic {value} is hidden within the following text. Make sure to memorize it. I will quiz you about the {value} \
                 afterwards.\n{context}\nWhat is the special magic {value} for {query} mentioned in the provided text?"
            ),
            format!(" The special magic {value} for {query} mentioned in the provided text is"),
        );
    }
    (
        format!(
            "Some special magic {values} are hidden within the following text. Make sure to memorize it. I will quiz you about the {values} \
             afterwards.\n{context}\nWhat are all the special magic {values} for {query} mentioned in the provided text?"
        ),
        format!(" The special magic {values} for {query} mentioned in the provided text are"),
    )
}

/// Variable tracking.
pub(super) fn tracking(context: &str, value: &str, variables: usize) -> (String, String) {
    (
        format!(
            "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find all variables \
             that are assigned the value {value} in the text above."
        ),
        format!(
            " Answer: According to the chain(s) of variable assignment in the text above, {variables} variables are assigned the value \
             {value}, they are: "
        ),
    )
}

/// Common words.
pub(super) fn common(context: &str) -> (String, String) {
    (
        format!(
            "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear most \
             often.\n{context}\nQuestion: What are the 10 most common words in the above list?"
        ),
        " Answer: The top 10 words that appear most often in the list are:".to_owned(),
    )
}

/// Frequent words.
pub(super) fn frequent(context: &str) -> (String, String) {
    (
        format!(
            "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared coded words. \
             {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently appeared \
             words in the above coded text?"
        ),
        " Answer: According to the coded text above, the three most frequently appeared words are:".to_owned(),
    )
}

/// Questions about documents.
pub(super) fn documents(context: &str, question: &str) -> (String, String) {
    const TASK: &str = "Answer the question based on the given documents. Only give me the answer and do not output any other words.";
    (format!("{TASK}\n\nThe following are given documents.\n\n{context}\n\n{TASK}\n\nQuestion: {question}"), " Answer:".to_owned())
}

/// Filler words in front of a prompt whose text has no place for them.
pub(super) fn led(filler: &[&str], content: String) -> String {
    if filler.is_empty() { content } else { format!("{}\n\n{content}", filler.join(" ")) }
}
