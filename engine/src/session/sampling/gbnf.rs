//! Translates grammars in llama.cpp's notation (GBNF). A grammar without recursion becomes a
//! regular expression. Any other becomes a Lark grammar, in which everything between two recursive
//! rules is one terminal.
//!
//! `name ::= "text" [a-z] . other-rule ( group | other ) ? * + {2,5}`; the generated text matches
//! `root`.

use std::{collections::HashMap, iter::Peekable, str::Chars};

use super::Grammar;
use thermocline_base::error::{Error, Result};

/// Largest size in bytes of a grammar, and of the regular expression of a terminal.
const LONGEST: usize = 256 << 10;
const LONGEST_TERMINAL: usize = 64 << 10;

/// Deepest nesting of groups, and of rules merged into one terminal.
const DEEPEST: usize = 64;

/// An expression of a rule.
#[derive(Debug, Clone, PartialEq)]
enum Expression {
    Text(String),
    /// One character inside these ranges, or outside them if negated.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    Any,
    /// Reference to the rule with this number.
    Rule(usize),
    Sequence(Vec<Expression>),
    Choice(Vec<Expression>),
    Repeat {
        what: Box<Expression>,
        least: usize,
        most: Option<usize>,
    },
}

/// Translates the grammar `text`. [`Error::Invalid`] if it is not GBNF.
pub fn translate(text: &str) -> Result<Grammar> {
    if text.len() > LONGEST {
        return Err(invalid(format!("at most {LONGEST} bytes"), text.len()));
    }
    let rules = GbnfReader::new(text).read()?;
    let Some(root) = rules.numbers.get("root") else { return Err(invalid("a rule called root", "no such rule")) };
    let terminals = rules.terminals();
    if let Some(Some(regex)) = terminals.get(*root) {
        return Ok(Grammar::Regex(regex.clone()));
    }
    let mut lark = format!("start: r{root}\n");
    for (number, rule) in rules.expressions.iter().enumerate() {
        if let (None, Some(rule)) = (&terminals[number], rule) {
            lark.push_str(&format!("r{number}: {}\n", lark_expression(rule, &terminals)));
        }
    }
    Ok(Grammar::Lark(lark))
}

fn invalid(expected: impl Into<String>, got: impl ToString) -> Error {
    Error::invalid("grammar", expected, got.to_string())
}

/// The rules of a grammar.
#[derive(Debug, Default)]
struct Rules {
    numbers: HashMap<String, usize>,
    names: Vec<String>,
    /// `None` for a rule that is referenced but not defined.
    expressions: Vec<Option<Expression>>,
}

impl Rules {
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        self.numbers.insert(name.to_owned(), self.names.len());
        self.names.push(name.to_owned());
        self.expressions.push(None);
        self.names.len() - 1
    }

    /// The regular expression of each rule that does not recurse and is not too long.
    fn terminals(&self) -> Vec<Option<String>> {
        let mut known: Vec<Option<Option<String>>> = vec![None; self.expressions.len()];
        for number in 0..known.len() {
            self.terminal(number, &mut known, &mut Vec::new());
        }
        known.into_iter().map(Option::flatten).collect()
    }

    fn terminal(
        &self,
        number: usize,
        known: &mut Vec<Option<Option<String>>>,
        path: &mut Vec<usize>,
    ) -> Option<String> {
        if let Some(terminal) = &known[number] {
            return terminal.clone();
        }
        if path.contains(&number) || path.len() == DEEPEST {
            // Every rule on the path from it back to itself recurses.
            let from = path.iter().position(|it| *it == number).unwrap_or(0);
            path[from..].iter().for_each(|it| known[*it] = Some(None));
            return None;
        }
        path.push(number);
        let regex = self.expressions[number].as_ref().and_then(|rule| {
            regex(rule, &mut |other| self.terminal(other, known, path)).filter(|it| it.len() <= LONGEST_TERMINAL)
        });
        path.pop();
        // Meanwhile a rule on a cycle may have been marked as recursive.
        known[number].get_or_insert(regex).clone()
    }
}

/// The regular expression of `expression`, in which `rule` returns a rule's regular expression.
/// `None` if a rule has none.
fn regex(expression: &Expression, rule: &mut dyn FnMut(usize) -> Option<String>) -> Option<String> {
    Some(match expression {
        Expression::Text(text) => text.chars().map(escaped).collect(),
        Expression::Class { negated, ranges } => {
            let range = |(low, high): &(char, char)| match low == high {
                true => escaped(*low),
                false => format!("{}-{}", escaped(*low), escaped(*high)),
            };
            let ranges: String = ranges.iter().map(range).collect();
            format!("[{}{ranges}]", if *negated { "^" } else { "" })
        }
        Expression::Any => "(?s:.)".to_owned(),
        Expression::Rule(number) => format!("(?:{})", rule(*number)?),
        Expression::Sequence(parts) => {
            let mut all = String::new();
            for part in parts {
                all.push_str(&regex(part, rule)?);
                if all.len() > LONGEST_TERMINAL {
                    return None;
                }
            }
            all
        }
        Expression::Choice(choices) => {
            let choices: Option<Vec<String>> = choices.iter().map(|choice| regex(choice, rule)).collect();
            format!("(?:{})", choices?.join("|"))
        }
        Expression::Repeat { what, least, most } => format!("(?:{}){}", regex(what, rule)?, count(*least, *most)),
    })
}

/// A repetition count in the form that both notations use.
fn count(least: usize, most: Option<usize>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// A regular expression that matches any of these texts.
pub fn one_of(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| text.chars().map(escaped).collect()).collect();
    format!("(?:{})", texts.join("|"))
}

/// A character escaped for a regular expression.
fn escaped(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\u{{{:X}}}", u32::from(c)) }
}

/// An expression in Lark's notation. Its regular parts become terminals.
fn lark_expression(expression: &Expression, terminals: &[Option<String>]) -> String {
    if let Some(regex) = regex(expression, &mut |rule| terminals[rule].clone()) {
        return if regex.is_empty() { "\"\"".to_owned() } else { format!("/{regex}/") };
    }
    match expression {
        Expression::Rule(number) => format!("r{number}"),
        Expression::Choice(choices) => {
            let choices: Vec<String> = choices.iter().map(|choice| lark_expression(choice, terminals)).collect();
            format!("({})", choices.join(" | "))
        }
        Expression::Repeat { what, least, most } => {
            format!("({}){}", lark_expression(what, terminals), count(*least, *most))
        }
        Expression::Sequence(parts) => {
            let is_regular = |part: &Expression| regex(part, &mut |rule| terminals[rule].clone()).is_some();
            // Adjacent regular parts become one terminal.
            let mut pieces = Vec::new();
            for run in parts.chunk_by(|a, b| is_regular(a) && is_regular(b)) {
                match run {
                    [one] => pieces.push(lark_expression(one, terminals)),
                    run => pieces.push(lark_expression(&Expression::Sequence(run.to_vec()), terminals)),
                }
            }
            pieces.join(" ")
        }
        // These expressions are always regular.
        Expression::Text(_) | Expression::Class { .. } | Expression::Any => String::new(),
    }
}

/// Parser of a grammar.
struct GbnfReader<'a> {
    text: Peekable<Chars<'a>>,
    line: usize,
    rules: Rules,
}

impl<'a> GbnfReader<'a> {
    fn new(text: &'a str) -> Self {
        GbnfReader { text: text.chars().peekable(), line: 1, rules: Rules::default() }
    }

    fn read(mut self) -> Result<Rules> {
        loop {
            self.skip_space(true);
            if self.text.peek().is_none() {
                break;
            }
            let name = self.name()?;
            self.skip_space(false);
            for wanted in "::=".chars() {
                self.expect(wanted, "::= after the name of a rule")?;
            }
            self.skip_space(true);
            let expression = self.choice(0)?;
            let number = self.rules.number(&name);
            self.rules.expressions[number] = Some(expression);
            match self.text.peek().copied() {
                None | Some('\n') => {}
                Some(other) => return Err(self.error("the end of the line", other)),
            }
        }
        match self.rules.expressions.iter().position(Option::is_none) {
            Some(missing) => Err(invalid(format!("a rule called {}", self.rules.names[missing]), "none")),
            None => Ok(self.rules),
        }
    }

    fn error(&self, expected: &str, got: impl ToString) -> Error {
        invalid(format!("{expected} in line {}", self.line), got)
    }

    fn next(&mut self) -> Option<char> {
        let next = self.text.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn expect(&mut self, wanted: char, what: &str) -> Result<()> {
        match self.next() {
            Some(c) if c == wanted => Ok(()),
            other => Err(self.error(what, shown(other))),
        }
    }

    /// Skips white space and comments, and also line ends if `lines`.
    fn skip_space(&mut self, lines: bool) {
        while let Some(&c) = self.text.peek() {
            match c {
                '#' => {
                    while self.text.peek().is_some_and(|c| *c != '\n') {
                        self.next();
                    }
                }
                '\n' if !lines => return,
                c if c.is_whitespace() => {
                    self.next();
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String> {
        let mut name = String::new();
        while let Some(c) = self.text.next_if(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
            name.push(c);
        }
        if name.is_empty() { Err(self.error("the name of a rule", shown(self.text.clone().next()))) } else { Ok(name) }
    }

    /// Reads alternatives up to the end of the rule, or of the group at nesting `depth`.
    fn choice(&mut self, depth: usize) -> Result<Expression> {
        if depth > DEEPEST {
            return Err(self.error("groups that are nested less deeply", depth));
        }
        let mut choices = vec![self.sequence(depth)?];
        loop {
            if depth == 0 {
                // The alternatives may continue on the next line.
                let mut ahead = self.text.clone();
                if ahead.by_ref().find(|c| !c.is_whitespace()) == Some('|') {
                    self.skip_space(true);
                }
            }
            if self.text.next_if_eq(&'|').is_none() {
                break;
            }
            self.skip_space(true);
            choices.push(self.sequence(depth)?);
        }
        Ok(if choices.len() == 1 { choices.swap_remove(0) } else { Expression::Choice(choices) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Expression> {
        let mut parts: Vec<Expression> = Vec::new();
        loop {
            self.skip_space(depth > 0);
            let Some(&c) = self.text.peek() else { break };
            let part = match c {
                '"' => self.string()?,
                '[' => self.class()?,
                '(' => {
                    self.next();
                    let group = self.choice(depth + 1)?;
                    self.skip_space(true);
                    self.expect(')', "a group's )")?;
                    group
                }
                '.' => {
                    self.next();
                    Expression::Any
                }
                '*' | '+' | '?' | '{' => {
                    let (least, most) = self.repetitions()?;
                    let Some(what) = parts.pop() else { return Err(self.error("something to repeat", c)) };
                    Expression::Repeat { what: Box::new(what), least, most }
                }
                c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => {
                    let name = self.name()?;
                    Expression::Rule(self.rules.number(&name))
                }
                _ => break,
            };
            parts.push(part);
        }
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Expression::Sequence(parts) })
    }

    fn repetitions(&mut self) -> Result<(usize, Option<usize>)> {
        match self.next() {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            _ => {}
        }
        let mut inside = String::new();
        while let Some(c) = self.next().filter(|c| *c != '}') {
            inside.push(c);
        }
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|count| *count <= LONGEST);
        let counts = match inside.split_once(',') {
            None => number(&inside).map(|count| (count, Some(count))),
            Some((least, "")) => number(least).map(|least| (least, None)),
            Some((least, most)) => number(least).zip(number(most)).map(|(least, most)| (least, Some(most))),
        };
        counts
            .filter(|(least, most)| most.is_none_or(|most| *least <= most && most > 0))
            .ok_or_else(|| self.error("a count of repetitions like {2}, {2,} or {2,5}", format!("{{{inside}}}")))
    }

    fn string(&mut self) -> Result<Expression> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(Expression::Text(text)),
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
                None => return Err(self.error("the end of a string", "the end of the grammar")),
            }
        }
    }

    fn class(&mut self) -> Result<Expression> {
        self.next();
        let negated = self.text.next_if_eq(&'^').is_some();
        let mut ranges: Vec<(char, char)> = Vec::new();
        loop {
            let low = match self.next() {
                Some(']') if ranges.is_empty() => return Err(self.error("characters in [ ]", "no characters")),
                Some(']') => return Ok(Expression::Class { negated, ranges }),
                Some('\\') => self.escape()?,
                Some(c) => c,
                None => return Err(self.error("the end of [ ]", "the end of the grammar")),
            };
            let mut ahead = self.text.clone();
            let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']');
            let high = if is_range {
                self.next();
                match self.next() {
                    Some('\\') => self.escape()?,
                    other => other.unwrap_or(low),
                }
            } else {
                low
            };
            if high < low {
                return Err(self.error("a range of characters", format!("{low}-{high}")));
            }
            ranges.push((low, high));
        }
    }

    /// The character of an escape whose `\` has been read.
    fn escape(&mut self) -> Result<char> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/' | '\'')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => {
                return Err(self.error("an escape like \\n, \\\", \\x41 or \\u00e9", format!("\\{}", shown(other))));
            }
        };
        let text: String = (0..digits).filter_map(|_| self.next()).collect();
        let code = u32::from_str_radix(&text, 16).ok().and_then(char::from_u32);
        code.ok_or_else(|| self.error("the number of a character in hexadecimal digits", text))
    }
}

fn shown(c: Option<char>) -> String {
    c.map_or_else(|| "the end".to_owned(), |c| c.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regex_of(text: &str) -> String {
        match translate(text) {
            Ok(Grammar::Regex(regex)) => regex,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn grammar_without_recursion_is_a_regular_expression() {
        assert_eq!(
            regex_of("root ::= \"a\" [b-d]+ other?\nother ::= \"x\" | \"yz\" # comment\n"),
            "a(?:[b-d])+(?:(?:(?:x|yz)))?"
        );
        assert_eq!(regex_of("root ::= [^\"\\\\] . \"\\n\\u00e9/\""), "[^\\u{22}\\u{5C}](?s:.)\\u{A}\\u{E9}\\u{2F}");
        assert_eq!(
            regex_of("root ::= (\n  \"a\" |\n  \"b\"\n){2,5} \"c\"{3} \"d\"{2,}"),
            "(?:(?:a|b)){2,5}(?:c){3,3}(?:d){2,}"
        );
        assert_eq!(regex_of("root ::= \"a\"\n  | \"b\" |\n  [x-]"), "(?:a|b|[x\\u{2D}])");
    }

    #[test]
    fn grammar_with_recursion_is_larks_with_terminals_between_rules() {
        let text = "root ::= \"(\" ws root ws \")\" | [a-z]+\nws ::= \" \"*";
        let Ok(Grammar::Lark(lark)) = translate(text) else { panic!("no Lark") };
        let wanted = "start: r1\nr1: (/\\u{28}(?:(?:\\u{20})*)/ r1 /(?:(?:\\u{20})*)\\u{29}/ | /(?:[a-z])+/)\n";
        assert_eq!(lark, wanted);
        // These rules reach a cycle but are not part of it.
        let text = "root ::= a \"x\"\na ::= b | \"y\"\nb ::= \"[\" a \"]\"";
        let Ok(Grammar::Lark(lark)) = translate(text) else { panic!("no Lark") };
        assert_eq!(lark.lines().count(), 4, "{lark}");
    }

    #[test]
    fn errors_name_the_line() {
        for (text, says) in [
            ("start ::= \"a\"", "a rule called root"),
            ("root ::= other", "a rule called other"),
            ("root ::= \"a\"\nroot = \"b\"", "::= after the name of a rule in line 2"),
            ("root ::= \"a", "the end of a string"),
            ("root ::= [", "the end of [ ]"),
            ("root ::= []", "characters in [ ]"),
            ("root ::= [z-a]", "a range of characters"),
            ("root ::= (\"a\"", "a group's )"),
            ("root ::= *", "something to repeat"),
            ("root ::= \"a\"{5,2}", "a count of repetitions"),
            ("root ::= \"\\q\"", "an escape"),
            ("root ::= \"\\ud800\"", "hexadecimal"),
            ("root ::= <[1000]>", "the end of the line"),
        ] {
            let error = translate(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert!(translate(&format!("root ::= {}", "(".repeat(100_000))).is_err());
        assert!(translate(&" ".repeat(LONGEST + 1)).is_err());
    }
}
