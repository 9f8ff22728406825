//! The part of the Kusto query language that the alerts and the workbook use, over rows of JSON.
//!
//! Times and spans are seconds. An unsupported construct panics, so that no query is misread.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

pub(crate) type Row = Map<String, Json>;
pub(crate) type Tables = BTreeMap<String, Vec<Row>>;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Number(f64),
    Sign(&'static str),
}

const SIGNS: [&str; 20] = [
    "==", "!=", "<=", ">=", "<", ">", "=", "(", ")", "[", "]", ",", ".", "|", ";", "*", "+", "-",
    "/", "%",
];

fn after(text: &str, at: usize) -> &str {
    text.split_at(at).1
}

fn before(text: &str, at: usize) -> &str {
    text.split_at(at).0
}

fn tokens(query: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = query.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let negates = first == '!' && after(rest, 1).starts_with(char::is_alphabetic);
        let used = if first == '"' {
            let text = after(rest, 1).split('"').next().unwrap();
            found.push(Token::Text(text.to_owned()));
            text.len() + 2
        } else if first.is_ascii_digit() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let unit = after(rest, digits).chars().next().filter(char::is_ascii_alphabetic);
            let factor = match unit {
                None | Some('s') => 1.0,
                Some('m') => 60.0,
                Some('h') => 3600.0,
                Some('d') => 86_400.0,
                Some(other) => panic!("unit {other} in {query}"),
            };
            found.push(Token::Number(before(rest, digits).parse::<f64>().unwrap() * factor));
            digits + usize::from(unit.is_some())
        } else if negates || is_word(first) {
            let end = after(rest, 1).find(|c: char| !is_word(c)).map_or(rest.len(), |at| at + 1);
            found.push(Token::Word(before(rest, end).to_owned()));
            end
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            let sign = sign.unwrap_or_else(|| panic!("`{first}` in {query}"));
            found.push(Token::Sign(sign));
            sign.len()
        };
        rest = after(rest, used).trim_start();
    }
    found
}

#[derive(Clone, Debug)]
enum Expr {
    Value(Json),
    Column(String),
    Member(Box<Self>, String),
    Call(String, Vec<Self>),
    Both(String, Box<Self>, Box<Self>),
    In(Box<Self>, Vec<Self>),
}

/// An expression, and its result column.
#[derive(Clone, Debug)]
struct Named(String, Expr);

struct Reader<'a> {
    tokens: Vec<Token>,
    at: usize,
    tables: &'a Tables,
    lets: Tables,
    now: f64,
}

/// Returns the rows that a query finds at `now`.
pub(crate) fn run(query: &str, tables: &Tables, now: f64) -> Vec<Row> {
    let mut reader = Reader { tokens: tokens(query), at: 0, tables, lets: Tables::new(), now };
    while reader.takes_word("let") {
        let name = reader.word();
        reader.sign("=");
        let rows = reader.pipeline();
        reader.lets.insert(name, rows);
        reader.sign(";");
    }
    let rows = reader.pipeline();
    assert_eq!(
        reader.at,
        reader.tokens.len(),
        "{:?} is left of {query}",
        reader.tokens.get(reader.at)
    );
    rows
}

impl Reader<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Token {
        self.at += 1;
        self.tokens.get(self.at - 1).expect("the query goes on").clone()
    }

    fn eats(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.at += usize::from(found);
        found
    }

    fn takes_word(&mut self, word: &str) -> bool {
        self.eats(&Token::Word(word.to_owned()))
    }

    fn takes_sign(&mut self, sign: &'static str) -> bool {
        self.eats(&Token::Sign(sign))
    }

    fn sign(&mut self, sign: &'static str) {
        assert!(self.takes_sign(sign), "`{sign}` expected, not {:?}", self.peek());
    }

    fn word(&mut self) -> String {
        let Token::Word(word) = self.next() else { panic!("a name expected at {}", self.at) };
        word
    }

    fn table(&mut self) -> Vec<Row> {
        if self.takes_sign("(") {
            let rows = self.pipeline();
            self.sign(")");
            return rows;
        }
        let name = self.word();
        let rows = self.lets.get(&name).or_else(|| self.tables.get(&name));
        rows.unwrap_or_else(|| panic!("no table {name}")).clone()
    }

    fn pipeline(&mut self) -> Vec<Row> {
        let mut rows = self.table();
        while self.takes_sign("|") {
            rows = match self.word().as_str() {
                "where" => {
                    let condition = self.expr();
                    rows.retain(|row| condition.eval(row, self.now) == true);
                    rows
                }
                "extend" => {
                    let all = self.named();
                    for row in &mut rows {
                        for Named(name, expr) in &all {
                            let value = expr.eval(row, self.now);
                            row.insert(name.clone(), value);
                        }
                    }
                    rows
                }
                "project" => {
                    let all = self.named();
                    let of = |row: &Row, Named(name, expr): &Named| {
                        (name.clone(), expr.eval(row, self.now))
                    };
                    rows.iter().map(|row| all.iter().map(|one| of(row, one)).collect()).collect()
                }
                "summarize" => {
                    let made = self.named();
                    let keys = if self.takes_word("by") { self.named() } else { Vec::new() };
                    summarize(&rows, &made, &keys, self.now)
                }
                "join" => {
                    assert!(self.takes_word("kind"));
                    self.sign("=");
                    let is_inner = match self.word().as_str() {
                        "inner" => true,
                        "leftouter" => false,
                        other => panic!("join kind {other}"),
                    };
                    let right = self.table();
                    assert!(self.takes_word("on"));
                    let key = self.word();
                    join(&rows, &right, &key, is_inner)
                }
                "union" => {
                    rows.extend(self.table());
                    rows
                }
                "top" => {
                    let Token::Number(most) = self.next() else { panic!("a number expected") };
                    assert!(self.takes_word("by"));
                    let by = self.expr();
                    let key = |row: &Row| by.eval(row, self.now).as_f64().unwrap_or(f64::MIN);
                    rows.sort_by(|one, other| key(other).total_cmp(&key(one)));
                    rows.truncate(most.to_string().parse().unwrap());
                    rows
                }
                other => panic!("operator {other}"),
            };
        }
        rows
    }

    /// Expressions between commas, each with its own name or that of its column.
    fn named(&mut self) -> Vec<Named> {
        let mut all = Vec::new();
        loop {
            let names = matches!(self.peek(), Some(Token::Word(_)))
                && self.tokens.get(self.at + 1) == Some(&Token::Sign("="));
            let name = names.then(|| {
                let name = self.word();
                self.sign("=");
                name
            });
            let expr = self.expr();
            let own = match &expr {
                Expr::Column(name) => name.clone(),
                Expr::Call(function, arguments) => match (function.as_str(), arguments.first()) {
                    ("bin", Some(Expr::Column(name))) => name.clone(),
                    _ => format!("{function}_"),
                },
                Expr::Value(_) | Expr::Member(..) | Expr::Both(..) | Expr::In(..) => String::new(),
            };
            all.push(Named(name.unwrap_or(own), expr));
            if !self.takes_sign(",") {
                return all;
            }
        }
    }

    fn expr(&mut self) -> Expr {
        self.binary(&[
            &["or"],
            &["and"],
            &[
                "==",
                "!=",
                "<",
                "<=",
                ">",
                ">=",
                "contains",
                "!contains",
                "startswith",
                "!startswith",
                "endswith",
                "in",
                "!in",
            ],
            &["+", "-"],
            &["*", "/"],
        ])
    }

    /// Operators with the lowest precedence come first.
    fn binary(&mut self, levels: &[&[&str]]) -> Expr {
        let Some((operators, tighter)) = levels.split_first() else { return self.operand() };
        let mut left = self.binary(tighter);
        loop {
            let found = match self.peek() {
                Some(Token::Word(word)) => word.clone(),
                Some(Token::Sign(sign)) => (*sign).to_owned(),
                _ => return left,
            };
            if !operators.contains(&found.as_str()) {
                return left;
            }
            self.at += 1;
            left = match found.as_str() {
                "in" | "!in" => {
                    self.sign("(");
                    let found_in = Expr::In(Box::new(left), self.list());
                    if found == "in" {
                        found_in
                    } else {
                        Expr::Call("not".to_owned(), vec![found_in])
                    }
                }
                _ => Expr::Both(found, Box::new(left), Box::new(self.binary(tighter))),
            };
        }
    }

    /// Arguments up to the closing parenthesis.
    fn list(&mut self) -> Vec<Expr> {
        let mut all = Vec::new();
        while !self.takes_sign(")") {
            all.push(self.expr());
            self.takes_sign(",");
        }
        all
    }

    fn operand(&mut self) -> Expr {
        let mut expr = match self.next() {
            Token::Number(number) => Expr::Value(json!(number)),
            Token::Text(text) => Expr::Value(json!(text)),
            Token::Sign("(") => {
                let inner = self.expr();
                self.sign(")");
                inner
            }
            Token::Word(word) if word == "true" || word == "false" => {
                Expr::Value(json!(word == "true"))
            }
            Token::Word(word) if self.takes_sign("(") => Expr::Call(word, self.list()),
            Token::Word(word) => Expr::Column(word),
            Token::Sign(sign) => panic!("a value expected, not {sign}"),
        };
        loop {
            if self.takes_sign(".") {
                expr = Expr::Member(Box::new(expr), self.word());
            } else if self.takes_sign("[") {
                let Token::Text(name) = self.next() else { panic!("a name expected") };
                self.sign("]");
                expr = Expr::Member(Box::new(expr), name);
            } else {
                return expr;
            }
        }
    }
}

fn text(value: &Json) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_null() => String::new(),
        None => value.to_string(),
    }
}

fn number(value: &Json) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

impl Expr {
    fn eval(&self, row: &Row, now: f64) -> Json {
        match self {
            Self::Value(value) => value.clone(),
            Self::Column(name) => row.get(name).cloned().unwrap_or_default(),
            Self::Member(of, name) => of.eval(row, now)[name.as_str()].clone(),
            Self::In(one, all) => {
                let one = one.eval(row, now);
                json!(all.iter().any(|other| other.eval(row, now) == one))
            }
            Self::Both(operator, left, right) => {
                both(operator, &left.eval(row, now), || right.eval(row, now))
            }
            Self::Call(name, arguments) => call(name, arguments, row, now),
        }
    }
}

fn both(operator: &str, left: &Json, right: impl FnOnce() -> Json) -> Json {
    match operator {
        "and" => return json!(*left == true && right() == true),
        "or" => return json!(*left == true || right() == true),
        _ => {}
    }
    let right = right();
    let (one, other) = (text(left).to_lowercase(), text(&right).to_lowercase());
    let numbers = left.as_f64().zip(right.as_f64());
    let compared = |fits: fn(&f64, &f64) -> bool| {
        json!(numbers.is_some_and(|(one, other)| fits(&one, &other)))
    };
    let counted = |made: fn(f64, f64) -> f64| {
        numbers.map_or(Json::Null, |(one, other)| json!(made(one, other)))
    };
    match operator {
        "==" => json!(
            *left == right || numbers.is_some_and(|(one, other)| one.total_cmp(&other).is_eq())
        ),
        "!=" => json!(!left.is_null() && *left != right),
        "<" => compared(f64::lt),
        "<=" => compared(f64::le),
        ">" => compared(f64::gt),
        ">=" => compared(f64::ge),
        "contains" => json!(one.contains(&other)),
        "!contains" => json!(!one.contains(&other)),
        "startswith" => json!(one.starts_with(&other)),
        "!startswith" => json!(!one.starts_with(&other)),
        "endswith" => json!(one.ends_with(&other)),
        "+" => counted(|one, other| one + other),
        "-" => counted(|one, other| one - other),
        "*" => counted(|one, other| one * other),
        "/" => counted(|one, other| one / other),
        other => panic!("operator {other}"),
    }
}

fn call(name: &str, arguments: &[Expr], row: &Row, now: f64) -> Json {
    let of = |at: usize| arguments[at].eval(row, now);
    match name {
        "parse_json" => serde_json::from_str(&text(&of(0))).unwrap_or_default(),
        "tostring" => json!(text(&of(0))),
        "tolong" => number(&of(0)).map_or(Json::Null, |number| json!(number.trunc())),
        "todouble" => number(&of(0)).map_or(Json::Null, |number| json!(number)),
        "isnotempty" => json!(!text(&of(0)).is_empty()),
        "isempty" => json!(text(&of(0)).is_empty()),
        "not" => json!(of(0) != true),
        "ago" => json!(now - of(0).as_f64().unwrap()),
        "bin" => {
            let (value, size) = (of(0).as_f64(), of(1).as_f64().unwrap());
            value.map_or(Json::Null, |value| json!((value / size).floor() * size))
        }
        "coalesce" => {
            let mut values = (0..arguments.len()).map(of);
            values.find(|value| !text(value).is_empty()).unwrap_or_default()
        }
        "case" => {
            let pairs = (0..arguments.len() / 2).find(|pair| of(2 * pair) == true);
            of(pairs.map_or(arguments.len() - 1, |pair| 2 * pair + 1))
        }
        "extract" => {
            let all = text(&of(2));
            // The text between two delimiters, anywhere in the input.
            if let Some((start, end)) = text(&of(0)).split_once("([^`]+)") {
                let inner = all.split_once(start).and_then(|(_, rest)| rest.split_once(end));
                return json!(inner.map(|(inner, _)| inner).unwrap_or_default());
            }
            // One group between two texts, with dots in brackets.
            let pattern = text(&of(0)).replace("[.]", ".");
            let (start, end) = pattern.trim_matches(['^', '$']).split_once("(.*)").unwrap();
            let inner = all.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
            json!(inner.unwrap_or_default())
        }
        other => panic!("function {other}"),
    }
}

fn summarize(rows: &[Row], made: &[Named], keys: &[Named], now: f64) -> Vec<Row> {
    let mut groups: Vec<(Row, Vec<&Row>)> = Vec::new();
    for row in rows {
        let key: Row =
            keys.iter().map(|Named(name, expr)| (name.clone(), expr.eval(row, now))).collect();
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.push(row),
            None => groups.push((key, vec![row])),
        }
    }
    // Without keys there is one group, even without rows.
    if keys.is_empty() && groups.is_empty() {
        groups.push((Row::new(), Vec::new()));
    }
    for (key, group) in &mut groups {
        for Named(name, expr) in made {
            let Expr::Call(function, arguments) = expr else { panic!("{expr:?} sums up nothing") };
            let values = || group.iter().map(|row| arguments[0].eval(row, now));
            let numbers = || values().filter_map(|value| value.as_f64());
            let value = match function.as_str() {
                "count" => json!(group.len()),
                "countif" => json!(values().filter(|value| *value == true).count()),
                "sum" => json!(numbers().sum::<f64>()),
                "max" => numbers().reduce(f64::max).map_or(Json::Null, |most| json!(most)),
                "percentile" => {
                    let mut all: Vec<f64> = numbers().collect();
                    all.sort_by(f64::total_cmp);
                    let share = arguments[1].eval(key, now).as_f64().unwrap() / 100.0;
                    let last = u32::try_from(all.len() - 1).unwrap();
                    let mut ranked = all.iter().zip(0..=last);
                    let found =
                        ranked.find(|(_, rank)| f64::from(*rank + 1) > f64::from(last) * share);
                    json!(found.unwrap().0)
                }
                "arg_max" => {
                    let at = |row: &&&Row| arguments[0].eval(row, now).as_f64().unwrap();
                    let last =
                        group.iter().max_by(|one, other| at(one).total_cmp(&at(other))).unwrap();
                    for argument in arguments {
                        let Expr::Column(name) = argument else { panic!("{argument:?}") };
                        key.insert(name.clone(), argument.eval(last, now));
                    }
                    continue;
                }
                other => panic!("aggregate {other}"),
            };
            key.insert(name.clone(), value);
        }
    }
    groups.into_iter().map(|(row, _)| row).collect()
}

fn join(left: &[Row], right: &[Row], key: &str, is_inner: bool) -> Vec<Row> {
    let mut joined = Vec::new();
    for row in left {
        let mut fits = right.iter().filter(|other| other.get(key) == row.get(key)).peekable();
        if fits.peek().is_none() && !is_inner {
            joined.push(row.clone());
        }
        joined.extend(fits.map(|other| {
            let others = other.iter().filter(|(name, _)| !row.contains_key(*name));
            row.iter()
                .chain(others)
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect::<Row>()
        }));
    }
    joined
}

#[test]
fn queries_evaluate_as_in_kusto() {
    let row = |at: f64, name: &str, message: &str| {
        json!({"timestamp": at, "name": name, "message": message, "customDimensions": {"Category": format!("Function.{name}.User")}})
            .as_object()
            .unwrap()
            .clone()
    };
    let rows = vec![
        row(10.0, "a", "{\"n\":1,\"x.y\":\"z\"}"),
        row(301.0, "a", "War none"),
        row(302.0, "b", "{\"n\":4}"),
    ];
    let tables = Tables::from([("t".to_owned(), rows), ("none".to_owned(), Vec::new())]);
    for (query, expected) in [
        (
            "t | where message startswith \"{\" and name == \"a\" | extend line = parse_json(message) | project n = tolong(line.n), x = tostring(line[\"x.y\"])",
            json!([{"n": 1.0, "x": "z"}]),
        ),
        (
            "t | where message contains \"WAR\" or timestamp > ago(5m) | project timestamp",
            json!([{"timestamp": 301.0}, {"timestamp": 302.0}]),
        ),
        (
            "t | summarize all = count(), odd = countif(message !contains \"{\") by name | where odd * 2 >= all",
            json!([{"name": "a", "all": 2, "odd": 1}]),
        ),
        (
            "t | summarize arg_max(timestamp, message) by name | top 1 by timestamp",
            json!([{"name": "b", "timestamp": 302.0, "message": "{\"n\":4}"}]),
        ),
        (
            "t | summarize count() by bin(timestamp, 5m)",
            json!([{"timestamp": 0.0, "count_": 1}, {"timestamp": 300.0, "count_": 2}]),
        ),
        (
            "t | extend f = extract(\"^Function[.](.*)[.]User$\", 1, tostring(customDimensions.Category)) | where f in (\"b\", \"c\") | project f, k = case(f == \"a\", 1, f == \"b\", 2, 3)",
            json!([{"f": "b", "k": 2.0}]),
        ),
        (
            "let u = none | project name, c = 1; t | where timestamp < 20 | project name | join kind=leftouter (u) on name | extend c = coalesce(c, 0) | union u",
            json!([{"name": "a", "c": 0.0}]),
        ),
        (
            "t | project name | join kind=inner (t | where name == \"b\" | project name, at = timestamp) on name",
            json!([{"name": "b", "at": 302.0}]),
        ),
    ] {
        assert_eq!(json!(run(query, &tables, 600.0)), expected, "{query}");
    }
}
