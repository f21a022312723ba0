//! What the operator is told: problems that stop the start, notices that do not.

use std::fmt;

/// One fault in the configuration, with its place and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file as it was named by the operator, or the flag that brought the value.
    pub file: String,
    /// Line in the file, from 1; 0 where the value has no place in a file.
    pub line: u64,
    /// Column in the line, from 1 and in characters; 0 where there is none.
    pub column: u64,
    /// Dotted path of the key, such as `backends.tickets.url`; may be empty.
    pub path: String,
    /// What is wrong, without any secret value.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_place(f, &self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

/// Everything that is wrong with one configuration, in the order of the file; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

/// Something the operator should know that does not stop the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The file as it was named by the operator.
    pub file: String,
    /// Line in the file, from 1; 0 where there is none.
    pub line: u64,
    /// Column in the line, from 1; 0 where there is none.
    pub column: u64,
    /// What was done or ignored, and why.
    pub message: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_place(f, &self.file, self.line, self.column)?;
        f.write_str(&self.message)
    }
}

fn write_place(f: &mut fmt::Formatter<'_>, file: &str, line: u64, column: u64) -> fmt::Result {
    if line > 0 { write!(f, "{file}:{line}:{column}: ") } else { write!(f, "{file}: ") }
}

/// A hint that names the nearest of the known words, or all of them where none is near.
pub(super) fn suggest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(word, &known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("use one of: {}", known.join(", ")),
    }
}

/// The known word that a slip of the pen turns into `word`: at most one slip in three letters, or the end left out.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    if let Some(longer) = known.iter().find(|candidate| word.len() > 4 && candidate.starts_with(word)) {
        return Some(longer);
    }
    let limit = (word.chars().count() / 3).min(3);
    known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), *candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
