//! Texts of users, shown: which characters a reader sees as they are.

/// Whether a character of a user's text can be shown as it is: it controls no terminal, a reader
/// sees it, and it does not turn the text around it. Tools that show keys, names, payloads and
/// errors show the number of any other character.
///
/// # Examples
///
/// A key that would colour a terminal:
///
/// ```
/// use timerqueue_schedule::is_visible;
///
/// let shown: String = "a\u{1b}[31m".chars().filter(|&c| is_visible(c)).collect();
/// assert_eq!(shown, "a[31m");
/// ```
#[must_use]
pub fn is_visible(c: char) -> bool {
    match c {
        // Joiners belong to several scripts, and to emojis.
        '\u{200c}' | '\u{200d}' => true,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' => false,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => false,
        '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' => false,
        _ => !c.is_control(),
    }
}
