//! The words of the style: sentences and private words that were replaced by the field's terms and do not come back.

/// Parts of sentences that had to be read twice, in lower case.
const SENTENCES: [&str; 18] = [
    "what has much to do wherever",
    "so much stays as is promised",
    "more is buffered than may be",
    "writes back twice what it brings",
    "what does is seen to first",
    "what no log can say",
    "what cannot be said in a log",
    "what of a copy lies on",
    "devices that cannot say",
    "a log that may lack something",
    "what became of a log",
    "not in a group that holds nothing else",
    "has a commit done when",
    "that alone is no sign of a removal",
    "devices that fail are told",
    "asks the thread in time, and helps",
    "how often it is looked",
    "that one is to retire",
];

/// Private words, each with the field's term. Code in backticks may contain them.
const PRIVATE: [(&str, &str); 22] = [
    ("settling", "freezing"),
    ("retire", "delete unused block groups"),
    ("retires", "delete unused block groups"),
    ("retired", "deleted"),
    ("judge", "checker"),
    ("judges", "checkers"),
    ("judged", "checked"),
    ("mend", "repair"),
    ("mends", "repairs"),
    ("mended", "repaired"),
    ("bury", "unlink"),
    ("buried", "unlinked"),
    ("doomed", "orphan"),
    ("conceive", "create an inode"),
    ("conceived", "created"),
    ("tree of tree roots", "root tree"),
    ("named_to", "conversion to full back references"),
    ("name_parents", "conversion to full back references"),
    ("hire", "worker"),
    ("hired", "worker"),
    ("nursery", "staging directory"),
    ("narrator", "the name of what it holds"),
];

/// First words of a doc comment that names no subject.
const HEADLESS: [&str; 4] = ["What ", "Who ", "Whoever ", "Whatever "];

/// The complaints about one piece of running text.
pub fn complaints(text: &str) -> Vec<String> {
    let plain = without_code(text).to_lowercase();
    let words: Vec<&str> = plain.split_whitespace().collect();
    let plain = words.join(" ");
    let sentences = SENTENCES.iter().filter(|part| plain.contains(**part));
    let sentences = sentences.map(|part| format!("'{part}' (see the style)"));
    let private = PRIVATE.iter().filter(|(word, _)| has_word(&plain, word));
    sentences.chain(private.map(|(word, term)| format!("'{word}': the term is '{term}'"))).collect()
}

/// Whether a doc comment begins with a clause instead of the thing that it describes.
pub fn is_headless(doc: &str) -> bool {
    HEADLESS.iter().any(|word| doc.trim_start().starts_with(word))
}

/// The complaints about sentences of a document that begin with a clause instead of a subject. Questions and headings
/// may.
pub fn headless_sentences(text: &str) -> Vec<String> {
    let plain = without_code(text);
    let blocks = plain.split("\n\n").flat_map(|block| block.split("\n- ")).flat_map(|block| block.split('|'));
    let sentences = blocks.flat_map(|block| block.trim_start_matches(['-', ' ']).split_inclusive(['.', '?', '!']));
    let sentences = sentences.map(|sentence| sentence.split_whitespace().collect::<Vec<_>>().join(" "));
    let headless = sentences.filter(|sentence| is_headless(sentence) && !sentence.ends_with('?'));
    headless.map(|sentence| format!("'{sentence}' does not begin with its subject")).collect()
}

/// Replaces everything between backticks.
fn without_code(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    pieces.map(|(number, piece)| if number % 2 == 0 { piece } else { "code" }).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_words_and_rejected_sentences_are_found() {
        assert_eq!(complaints("What no\nlog can say is committed.").len(), 1);
        assert_eq!(complaints("The judge finds a tree of tree roots.").len(), 2);
        assert_eq!(complaints("`judge` amends a judgement, an image is repaired"), Vec::<String>::new());
    }

    #[test]
    fn a_sentence_without_a_subject_is_found() {
        let text =
            "## What works\n\nIt ends. What was\nsynced stays. What now?\n\n- Who owns it may.\n| a | Whatever is |";
        let found = headless_sentences(text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("'What was synced stays.'"), "{found:?}");
    }

    #[test]
    fn a_doc_comment_without_a_subject_is_found() {
        assert!(is_headless(" What to do if devices are missing."));
        assert!(!is_headless(" Whether the treatment of missing devices is set."));
    }
}
