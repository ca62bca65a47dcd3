//! Text of outsiders in a page or in Markdown.

use std::fmt::Write as _;

/// Text in HTML: nothing in it is markup, and nothing changes how what follows it is shown.
pub(super) fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => push_visible(&mut safe, c),
        }
    }
    safe
}

/// A line of text in Markdown outside of fences: nothing in it is markup, a mention or a link.
pub(super) fn markdown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => safe.push(' '),
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            // Somebody would get a message, or a link where none was meant.
            '@' => safe.push_str("&#64;"),
            '#' => safe.push_str("&#35;"),
            ':' => safe.push_str("&#58;"),
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '(' | ')' | '!' | '|' | '~' | '$' => {
                safe.push('\\');
                safe.push(c);
            }
            c => push_visible(&mut safe, c),
        }
    }
    safe
}

/// Text in a fence that is longer than any that the text could close it with.
pub(super) fn fenced(text: &str) -> String {
    let mut longest = 0;
    let mut current = 0;
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        current = if c == '`' { current + 1 } else { 0 };
        longest = longest.max(current);
        if c == '\r' {
            safe.push_str("\\r");
        } else {
            push_visible(&mut safe, c);
        }
    }
    let fence = "`".repeat((longest + 1).max(3));
    format!("{fence}text\n{safe}\n{fence}")
}

/// Control characters, and those that turn the direction of text around, as their escapes.
fn push_visible(out: &mut String, c: char) {
    let invisible = (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    if invisible {
        // Writing to a string can't fail.
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    } else {
        out.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_stays_text() {
        assert_eq!(
            html("<img src=x onerror='a()'>\u{1b}[2J\u{202e}&\""),
            "&lt;img src=x onerror=&#39;a()&#39;&gt;\\u{1b}[2J\\u{202e}&amp;&quot;"
        );
        assert_eq!(
            markdown("a|b <b> @team #1 [x](http://y)\n- z"),
            "a\\|b &lt;b&gt; &#64;team &#35;1 \\[x\\]\\(http&#58;//y\\) - z"
        );
        assert_eq!(
            fenced("a\n```\n</details>"),
            "````text\na\n```\n</details>\n````"
        );
    }
}
