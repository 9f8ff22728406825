using System.Text.Json;
using Receiver.Core;

namespace Receiver;

// The columns of @@table@@ as types, written by `highwater init` from the table. A decimal with more than 28 digits
// is text.

/// <summary>Identifies a row.</summary>
public sealed record @@Poller@@Key
{
@@key_fields@@

    public static @@Poller@@Key FromJson(JsonElement columns) => new()
    {
@@key_values@@
    };
}

/// <summary>A row in its current state.</summary>
public sealed record @@Poller@@Row
{
@@row_fields@@

    public static @@Poller@@Row FromJson(JsonElement columns) => new()
    {
@@row_values@@
    };
}

/// <summary>One change of a row.</summary>
/// <param name="Id">The same on every delivery of this state of the row.</param>
/// <param name="Operation"><c>upsert</c> or <c>delete</c>; with change tracking also <c>insert</c> and <c>update</c>.</param>
/// <param name="Key">The key of the row.</param>
/// <param name="Row"><c>null</c> for a deleted row.</param>
public sealed record @@Poller@@Change(string Id, string Operation, @@Poller@@Key Key, @@Poller@@Row? Row)
{
    public static @@Poller@@Change FromJson(JsonElement change)
    {
        JsonElement after = Column.Required(change, "after", value => value);
        return new(
            Column.Required(change, "id", Column.AsText),
            Column.Required(change, "op", Column.AsText),
            @@Poller@@Key.FromJson(Column.Required(change, "pk", value => value)),
            after.ValueKind == JsonValueKind.Null ? null : @@Poller@@Row.FromJson(after));
    }
}
