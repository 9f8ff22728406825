//! Builds HTML in which untrusted text cannot become markup.
//!
//! Names of elements and attributes are constants of this program; everything else is escaped.
//! Characters that could reorder or hide the text around them are replaced: [`crate::printable`].

use std::borrow::Cow;

use crate::printable::printable_char;
use crate::redaction::redact;

/// A piece of a page.
#[derive(Debug, Default)]
pub(super) struct Html {
    text: String,
}

/// Attributes of an element: a constant name, and any value.
pub(super) type Attributes<'a> = &'a [(&'static str, &'a str)];

impl Html {
    /// Returns the text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Adds an element whose content is added by `inside`.
    pub(super) fn within(
        &mut self,
        tag: &'static str,
        attributes: Attributes<'_>,
        inside: impl FnOnce(&mut Self),
    ) {
        self.void(tag, attributes);
        inside(self);
        self.text.push_str("</");
        self.text.push_str(tag);
        self.text.push('>');
    }

    /// Adds an element with a text.
    pub(super) fn element(&mut self, tag: &'static str, attributes: Attributes<'_>, text: &str) {
        self.within(tag, attributes, |html| html.text(text));
    }

    /// Adds an element that has no end tag, such as `input`.
    pub(super) fn void(&mut self, tag: &'static str, attributes: Attributes<'_>) {
        self.text.push('<');
        self.text.push_str(tag);
        for (name, value) in attributes {
            self.text.push(' ');
            self.text.push_str(name);
            self.text.push_str("=\"");
            // A link may contain the function key from the address, and must keep it.
            let value = if *name == "href" { Cow::Borrowed(*value) } else { redact(value) };
            escape(&mut self.text, &value);
            self.text.push('"');
        }
        self.text.push('>');
    }

    /// Adds a hidden field that keeps the function key from the address, as links do.
    pub(super) fn secret_input(&mut self, name: &'static str, value: &str) {
        self.text.push_str("<input type=\"hidden\" name=\"");
        self.text.push_str(name);
        self.text.push_str("\" value=\"");
        escape(&mut self.text, value);
        self.text.push_str("\">");
    }

    /// Adds text of our own. Secrets are redacted, as everywhere.
    pub(super) fn text(&mut self, text: &str) {
        escape(&mut self.text, &redact(text));
    }

    /// Adds untrusted text, isolated so that its writing direction does not affect what follows.
    pub(super) fn foreign(&mut self, text: &str) {
        self.element("bdi", &[], text);
    }

    /// Adds constant markup.
    pub(super) fn raw(&mut self, markup: &'static str) {
        self.text.push_str(markup);
    }
}

/// Appends `text`, escaped for use between tags and in attributes.
pub(super) fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '`' => out.push_str("&#96;"),
            '\n' | '\t' => out.push(c),
            c => out.push(printable_char(c)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        let mut out = String::new();
        escape(&mut out, text);
        out
    }

    #[test]
    fn hostile_text_is_escaped() {
        for (text, expected) in [
            (
                "</script><script>alert(1)</script>",
                "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;",
            ),
            ("\" onmouseover=\"x", "&quot; onmouseover=&quot;x"),
            ("' autofocus onfocus='x", "&#39; autofocus onfocus=&#39;x"),
            ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
            ("<!-- --> ]]>", "&lt;!-- --&gt; ]]&gt;"),
            ("`x`", "&#96;x&#96;"),
            ("a\u{202e}b\u{2066}c\u{200f}", "a\u{fffd}b\u{fffd}c\u{fffd}"),
            ("\u{0}\u{1b}[2J\r", "  [2J "),
            ("\u{feff}\u{200b}\u{2028}", "\u{fffd}\u{fffd} "),
            ("two\nlines\tand", "two\nlines\tand"),
            ("Zoë 日本 שלום 🎉", "Zoë 日本 שלום 🎉"),
        ] {
            assert_eq!(escaped(text), expected, "{text:?}");
        }
    }

    #[test]
    fn values_of_attributes_and_elements_are_escaped() {
        let mut html = Html::default();
        html.within("td", &[("title", "a\">b"), ("class", "x")], |html| html.foreign("<i>"));
        html.void("input", &[("value", "'")]);
        html.raw("<hr>");
        let expected = "<td title=\"a&quot;&gt;b\" class=\"x\"><bdi>&lt;i&gt;</bdi></td>\
            <input value=\"&#39;\"><hr>";
        assert_eq!(html.finish(), expected);
    }
}
