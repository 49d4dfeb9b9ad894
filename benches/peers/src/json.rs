//! A reader of JSON lines, which the report and the drivers of other languages write.
//!
//! Ground rules. The reader knows only the values of such lines: objects, lists, strings, numbers
//! and `null`. An error shows the rest of the line from the point where reading stopped.

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Number(f64),
    Text(String),
    List(Vec<Value>),
    /// In the order of the text.
    Object(Vec<(String, Value)>),
}

impl Value {
    /// The value of a line.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let mut reader = Reader { rest: line.trim() };
        let value = reader.value();
        match value {
            Some(value) if reader.rest.is_empty() => Ok(value),
            _ => Err(format!("no JSON from here on: {}", reader.rest.chars().take(40).collect::<String>())),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(pairs) = self else { return None };
        pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_number()
    }

    /// A list of lists of numbers.
    pub(crate) fn tuples(&self, key: &str) -> Option<Vec<Vec<f64>>> {
        let Self::List(tuples) = self.get(key)? else { return None };
        let tuple = |value: &Self| match value {
            Self::List(numbers) => numbers.iter().map(Self::as_number).collect(),
            _ => None,
        };
        tuples.iter().map(tuple).collect()
    }

    fn as_number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }
}

/// A string as JSON writes it.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The rest of the line, not read yet.
struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn accept(&mut self, what: &str) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(what)?.trim_start();
        Some(())
    }

    fn value(&mut self) -> Option<Value> {
        match self.rest.chars().next()? {
            '{' => self
                .several('{', '}', |reader| {
                    let key = reader.string()?;
                    reader.accept(":")?;
                    Some((key, reader.value()?))
                })
                .map(Value::Object),
            '[' => self.several('[', ']', Self::value).map(Value::List),
            '"' => self.string().map(Value::Text),
            'n' => self.accept("null").map(|()| Value::Null),
            _ => {
                let end = self.rest.find([',', ']', '}', ' ']).unwrap_or(self.rest.len());
                let (number, rest) = self.rest.split_at(end);
                self.rest = rest;
                number.parse().ok().map(Value::Number)
            }
        }
    }

    fn several<T>(&mut self, open: char, close: char, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let (open, close) = (open.to_string(), close.to_string());
        self.accept(&open)?;
        let mut all = Vec::new();
        if self.rest.starts_with(&close) {
            self.rest = &self.rest[1..];
            return Some(all);
        }
        loop {
            all.push(one(self)?);
            if self.accept(",").is_none() {
                // Not `accept`: text after the line's last bracket must stay, to be reported as an
                // error.
                self.rest = self.rest.trim_start().strip_prefix(&close)?;
                return Some(all);
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        let mut chars = self.rest.strip_prefix('"')?.chars();
        let mut text = String::new();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => text.push(match chars.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'u' => {
                        let digits: String = chars.by_ref().take(4).collect();
                        char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                    }
                    itself => itself,
                }),
                c => text.push(c),
            }
        }
        self.rest = chars.as_str();
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::{Value, quoted};

    #[test]
    fn a_line_that_is_written_is_read_again() {
        let text = "a \"quote\", a \\, a\ttab and a new\nline";
        let line = format!(
            r#"{{"metric":{}, "value": -1.5e3,"none":null,"pairs":[[0,1],[0.5,2.25]],"empty":[]}}"#,
            quoted(text)
        );
        let value = Value::parse(&line).expect("it is JSON");
        assert_eq!(value.text("metric"), Some(text));
        assert_eq!(value.number("value"), Some(-1_500.0));
        assert_eq!(value.get("none"), Some(&Value::Null));
        assert_eq!(value.tuples("pairs"), Some(vec![vec![0.0, 1.0], vec![0.5, 2.25]]));
        assert_eq!(value.tuples("empty"), Some(vec![]));
        assert_eq!(value.number("metric"), None);
    }

    #[test]
    fn what_is_no_json_is_told() {
        for line in ["", "{", "{\"a\":1", "{\"a\" 1}", "[1,]", "[1] 2", "\"open", "{\"a\":1}}", "nul", "1.2.3"] {
            assert!(Value::parse(line).is_err(), "{line}");
        }
    }
}
