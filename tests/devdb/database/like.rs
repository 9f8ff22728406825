//! `LIKE`, whose patterns support character sets, unlike SQLite's.

/// Whether a text matches a pattern of `%`, `_`, `[set]` and `[^set]`, ignoring case.
pub(crate) fn fits(text: &str, pattern: &str, escape: Option<char>) -> bool {
    let text: Vec<char> = text.chars().flat_map(char::to_lowercase).collect();
    let escape = escape.and_then(|letter| letter.to_lowercase().next());
    let pattern: Vec<char> = pattern.chars().flat_map(char::to_lowercase).collect();
    rest_fits(&text, &parts(&pattern, escape))
}

#[derive(Debug)]
enum Part {
    Any,
    One,
    Letter(char),
    /// Character ranges, and whether the set is negated.
    Set(Vec<(char, char)>, bool),
}

fn parts(mut pattern: &[char], escape: Option<char>) -> Vec<Part> {
    let mut parts = Vec::new();
    while let [first, rest @ ..] = pattern {
        pattern = rest;
        parts.push(match (first, rest) {
            (first, [letter, rest @ ..]) if Some(*first) == escape => {
                pattern = rest;
                Part::Letter(*letter)
            }
            ('%', _) => Part::Any,
            ('_', _) => Part::One,
            ('[', _) => match rest.iter().position(|letter| *letter == ']') {
                Some(end) => {
                    let (inside, behind) = rest.split_at(end);
                    pattern = behind.split_first().map_or(behind, |(_, behind)| behind);
                    set(inside)
                }
                None => Part::Letter('['),
            },
            (letter, _) => Part::Letter(*letter),
        });
    }
    parts
}

fn set(inside: &[char]) -> Part {
    let (mut letters, excluded) = match inside {
        ['^', rest @ ..] => (rest, true),
        all => (all, false),
    };
    let mut ranges = Vec::new();
    while let [first, rest @ ..] = letters {
        letters = rest;
        let mut last = first;
        if let ['-', end, behind @ ..] = rest {
            (last, letters) = (end, behind);
        }
        ranges.push((*first, *last));
    }
    Part::Set(ranges, excluded)
}

fn rest_fits(text: &[char], parts: &[Part]) -> bool {
    let Some((part, behind)) = parts.split_first() else {
        return text.is_empty();
    };
    if let Part::Any = part {
        return (0..=text.len()).any(|skip| rest_fits(text.get(skip..).unwrap_or(&[]), behind));
    }
    let Some((letter, rest)) = text.split_first() else {
        return false;
    };
    let fits = match part {
        Part::Any | Part::One => true,
        Part::Letter(wanted) => letter == wanted,
        Part::Set(ranges, excluded) => {
            ranges.iter().any(|(first, last)| (first..=last).contains(&letter)) != *excluded
        }
    };
    fits && rest_fits(rest, behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_sql_server() {
        for (text, pattern, escape, expected) in [
            ("abc", "A%", None, true),
            ("abc", "%b%", None, true),
            ("abc", "_b_", None, true),
            ("abc", "_b", None, false),
            ("", "%", None, true),
            ("bcd", "[a-c]%", None, true),
            ("bcd", "[^a-c]%", None, false),
            ("-", "[a-]", None, true),
            ("50%", "50[%]", None, true),
            ("505", "50[%]", None, false),
            ("50%", "%!%", Some('!'), true),
            ("505", "%!%", Some('!'), false),
            ("[a", "[a", None, true),
        ] {
            assert_eq!(fits(text, pattern, escape), expected, "`{text}` LIKE `{pattern}`");
        }
    }
}
