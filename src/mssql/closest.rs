//! Suggests the name that was most likely meant.

/// Returns the candidate with the smallest edit distance, if that is small or `text` is its last part.
pub fn closest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = (text.len() / 3).clamp(1, 3);
    let ranked = candidates.filter_map(|candidate| {
        let is_last_part = candidate.strip_suffix(text).is_some_and(|rest| rest.ends_with('_'));
        let rank = if is_last_part { 1 } else { distance(text, candidate) };
        (rank <= far).then_some((rank, candidate))
    });
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, candidate)| candidate)
}

/// Returns the number of characters to insert, delete or replace to get from `a` to `b`.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (index, from) in a.chars().enumerate() {
        let (mut diagonal, mut left) = (index, index + 1);
        for (cell, to) in row.iter_mut().skip(1).zip(b.chars()) {
            let replaced = diagonal + usize::from(from != to);
            left = replaced.min(left + 1).min(*cell + 1);
            diagonal = std::mem::replace(cell, left);
        }
    }
    row.last().copied().filter(|_| !b.is_empty()).unwrap_or_else(|| a.chars().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_single_edits() {
        for (a, b, edits) in
            [("", "", 0), ("abc", "", 3), ("", "abc", 3), ("kitten", "sitting", 3), ("a", "a", 0)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }
}
