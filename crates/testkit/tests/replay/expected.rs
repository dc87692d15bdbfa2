//! The trees that the kernel's replay of the corpus shows, as the file beside the corpus writes them down: JSON of
//! objects, lists, strings and numbers.

use std::collections::BTreeMap;

/// A value of JSON; numbers and words are kept as they are written.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    Object(BTreeMap<String, Json>),
    List(Vec<Json>),
    Text(String),
    Word(String),
}

impl Json {
    pub fn parse(text: &str) -> Json {
        let mut rest = text.chars().peekable();
        value(&mut rest)
    }

    pub fn object(&self) -> &BTreeMap<String, Json> {
        match self {
            Json::Object(members) => members,
            other => panic!("no object: {other:?}"),
        }
    }

    pub fn texts(&self) -> Vec<String> {
        let Json::List(items) = self else { panic!("no list: {self:?}") };
        let text = |item: &Json| match item {
            Json::Text(text) => text.clone(),
            other => panic!("no text: {other:?}"),
        };
        items.iter().map(text).collect()
    }
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn next_mark(rest: &mut Rest<'_>) -> char {
    while rest.next_if(|c| c.is_whitespace()).is_some() {}
    *rest.peek().expect("the text goes on")
}

fn value(rest: &mut Rest<'_>) -> Json {
    match next_mark(rest) {
        '{' => Json::Object(members(rest)),
        '[' => Json::List(items(rest)),
        '"' => Json::Text(text(rest)),
        _ => {
            let mut word = String::new();
            while let Some(c) = rest.next_if(|c| c.is_alphanumeric() || "+-.".contains(*c)) {
                word.push(c);
            }
            assert!(!word.is_empty(), "a value begins with {:?}", rest.peek());
            Json::Word(word)
        }
    }
}

/// Whether the list goes on; takes the bracket or comma.
fn goes_on(rest: &mut Rest<'_>, end: char) -> bool {
    if next_mark(rest) == end {
        rest.next();
        return false;
    }
    rest.next_if_eq(&',');
    next_mark(rest) != end || goes_on(rest, end)
}

fn members(rest: &mut Rest<'_>) -> BTreeMap<String, Json> {
    rest.next();
    let mut found = BTreeMap::new();
    while goes_on(rest, '}') {
        let name = text(rest);
        assert_eq!(next_mark(rest), ':');
        rest.next();
        found.insert(name, value(rest));
    }
    found
}

fn items(rest: &mut Rest<'_>) -> Vec<Json> {
    rest.next();
    let mut found = Vec::new();
    while goes_on(rest, ']') {
        found.push(value(rest));
    }
    found
}

fn text(rest: &mut Rest<'_>) -> String {
    assert_eq!(rest.next(), Some('"'));
    let mut found = String::new();
    loop {
        match rest.next().expect("the text ends") {
            '"' => return found,
            '\\' => found.push(escaped(rest)),
            c => found.push(c),
        }
    }
}

fn escaped(rest: &mut Rest<'_>) -> char {
    match rest.next().expect("the escape ends") {
        'n' => '\n',
        't' => '\t',
        'u' => {
            let digits: String = rest.by_ref().take(4).collect();
            let code = u32::from_str_radix(&digits, 16).expect("four digits");
            char::from_u32(code).expect("a character of the basic plane")
        }
        c => c,
    }
}

#[test]
fn the_notation_is_read() {
    let json = Json::parse(r#" {"a": ["x\"y", "\u0041"], "b": {}, "c": null, "d": [1, 2 ]} "#);
    assert_eq!(json.object()["a"].texts(), ["x\"y", "A"]);
    assert_eq!(json.object()["b"], Json::Object(BTreeMap::new()));
    assert_eq!(json.object()["c"], Json::Word("null".to_owned()));
    assert_eq!(json.object()["d"], Json::List(vec![Json::Word("1".to_owned()), Json::Word("2".to_owned())]));
}
