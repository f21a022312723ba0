//! Parts of lists, the newest first.

use drawbridge_auth::records::{Page, PageRequest};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::{Any, AnyConnection, Arguments as _, AssertSqlSafe, Encode, Type};

use crate::row::may_exist;

/// The most items of a part.
const MOST: u32 = 500;

/// How many items a part has at most.
pub(crate) fn limit(asked: u32) -> usize {
    asked.clamp(1, MOST) as usize
}

/// A list that is being asked for. Conditions are texts of ours; what was asked for is bound.
pub(crate) struct List {
    columns: &'static str,
    table: &'static str,
    conditions: Vec<String>,
    arguments: AnyArguments,
}

impl List {
    pub(crate) fn of(columns: &'static str, table: &'static str) -> Self {
        Self { columns, table, conditions: Vec::new(), arguments: AnyArguments::default() }
    }

    /// How a condition names this value.
    pub(crate) fn bind<'q>(&mut self, value: impl Encode<'q, Any> + Type<Any>) -> sqlx::Result<String> {
        self.arguments.add(value).map_err(sqlx::Error::Encode)?;
        Ok(format!("${}", self.arguments.len()))
    }

    /// Only what fulfils this, too.
    pub(crate) fn only(&mut self, condition: String) {
        self.conditions.push(condition);
    }

    /// Only what has this text in a column, if there is one to ask for.
    pub(crate) fn only_text(&mut self, column: &'static str, text: Option<&str>) -> sqlx::Result<()> {
        let Some(text) = text else { return Ok(()) };
        if may_exist(text) {
            let text = self.bind(text)?;
            self.only(format!("{column} = {text}"));
        } else {
            self.only("1 = 0".to_owned());
        }
        Ok(())
    }

    /// The first rows of it in this order, a text of ours.
    pub(crate) async fn fetch(
        mut self,
        connection: &mut AnyConnection,
        order: &'static str,
        most: usize,
    ) -> sqlx::Result<Vec<AnyRow>> {
        let most = self.bind(i64::try_from(most).unwrap_or(i64::MAX))?;
        let conditions = match self.conditions.len() {
            0 => String::new(),
            _ => format!(" where {}", self.conditions.join(" and ")),
        };
        let Self { columns, table, arguments, .. } = self;
        let sql = format!("select {columns} from {table}{conditions} order by {order} limit {most}");
        sqlx::query_with(AssertSqlSafe(sql), arguments).fetch_all(connection).await
    }

    /// A part of it, as `read` makes items of rows; `id` is what it is ordered by.
    pub(crate) async fn page<T>(
        mut self,
        connection: &mut AnyConnection,
        page: &PageRequest,
        read: impl Fn(&AnyRow) -> sqlx::Result<T>,
        id: impl Fn(&T) -> &str,
    ) -> sqlx::Result<Page<T>> {
        if let Some(after) = &page.after {
            let after = self.bind(after.split('\0').next().unwrap_or_default())?;
            self.only(format!("id < {after}"));
        }
        let most = limit(page.limit);
        let rows = self.fetch(connection, "id desc", most + 1).await?;
        let items = rows.iter().map(read).collect::<sqlx::Result<Vec<T>>>()?;
        Ok(cut(items, most, |last| id(last).to_owned()))
    }
}

/// The first of these, and where the others begin if there are any.
pub(crate) fn cut<T>(mut items: Vec<T>, most: usize, cursor: impl Fn(&T) -> String) -> Page<T> {
    let more = items.len() > most;
    items.truncate(most);
    let next = if more { items.last().map(cursor) } else { None };
    Page { items, next }
}
