//! What Python knows of characters and the standard library does not.

/// The first of each ten digits, of Unicode's category Nd.
const ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
    0xde6, 0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
    0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650,
    0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50,
    0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

/// Digits that are no decimal ones: raised, in circles and the like.
const OTHER_DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

pub fn is_decimal(c: char) -> bool {
    let code = c as u32;
    let at = ZEROS.partition_point(|zero| *zero <= code);
    at > 0 && code - ZEROS[at - 1] < 10
}

pub fn is_digit(c: char) -> bool {
    let code = c as u32;
    is_decimal(c) || OTHER_DIGITS.iter().any(|(first, last)| (*first..=*last).contains(&code))
}

/// str.casefold: the small letters of the capitals, but for Cherokee, whose capitals came first.
pub fn casefold(c: char) -> impl Iterator<Item = char> {
    let to_capital = matches!(c, '\u{13f8}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}');
    let stays = matches!(c, 'ı' | '\u{13a0}'..='\u{13f5}');
    c.to_uppercase().flat_map(move |upper| {
        let mut folded = if stays { c.to_string() } else { upper.to_lowercase().to_string() };
        if to_capital {
            folded = upper.to_string();
        }
        folded.chars().collect::<Vec<_>>()
    })
}

/// A capital; of letters that are two in one, only the first of them is.
pub fn to_title(c: char) -> impl Iterator<Item = char> {
    let (first, second) = match c {
        '\u{1c4}'..='\u{1c6}' => ('\u{1c5}', None),
        '\u{1c7}'..='\u{1c9}' => ('\u{1c8}', None),
        '\u{1ca}'..='\u{1cc}' => ('\u{1cb}', None),
        '\u{1f1}'..='\u{1f3}' => ('\u{1f2}', None),
        'ß' => ('S', Some('s')),
        'ﬀ' => ('F', Some('f')),
        'ﬁ' => ('F', Some('i')),
        'ﬂ' => ('F', Some('l')),
        c => return Titled::Upper(c.to_uppercase()),
    };
    Titled::Two(Some(first), second)
}

enum Titled {
    Upper(std::char::ToUppercase),
    Two(Option<char>, Option<char>),
}

impl Iterator for Titled {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        match self {
            Titled::Upper(chars) => chars.next(),
            Titled::Two(first, second) => first.take().or_else(|| second.take()),
        }
    }
}
