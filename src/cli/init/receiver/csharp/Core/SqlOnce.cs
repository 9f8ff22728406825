using System.Globalization;
using Microsoft.AspNetCore.Http;
using Microsoft.Data.SqlClient;
using Microsoft.Extensions.Logging;

namespace Receiver.Core;

/// <summary>
/// Applies each event once. One transaction holds the work of a batch and the ids of its events; schema.sql has the
/// tables. A savepoint before each event undoes the work of an event that fails; everything before it is committed.
/// Whether an event was seen before is decided by the unique key, and never by a number of affected rows: with
/// SET NOCOUNT ON the client reports -1 for every statement.
/// If the failure of an event ends the whole transaction, what came before the event is applied again in a new one.
/// </summary>
public sealed class SqlOnce(ReceiverSettings settings, @@Poller@@Handler handler, ILogger<SqlOnce> log) : IBatchStore
{
    private const string Savepoint = "event";

    public async Task<string?> ApplyAsync(Batch batch, CancellationToken cancel)
    {
        string? failed = null;
        while (true)
        {
            (string? first, bool isUndone) = await ApplyInTransactionAsync(batch, cancel);
            failed = first ?? failed;
            if (!isUndone)
            {
                return failed;
            }
            // Each time fewer changes, so this ends.
            batch = batch with { Changes = batch.Changes.TakeWhile(change => change.Id != failed).ToArray() };
        }
    }

    // Returns the id of the first change that failed, and whether its failure undid what came before it.
    private async Task<(string? Failed, bool IsUndone)> ApplyInTransactionAsync(Batch batch, CancellationToken cancel)
    {
        await using var connection = new SqlConnection(settings.Database);
        await connection.OpenAsync(cancel);
        // The server may have it on for everyone; then each duplicate would end the transaction.
        await using (var set = new SqlCommand("SET XACT_ABORT OFF", connection))
        {
            await set.ExecuteNonQueryAsync(cancel);
        }
        // Disposing of it rolls back.
        await using var transaction = (SqlTransaction)await connection.BeginTransactionAsync(cancel);
        await AdmitAsync(batch, transaction, cancel);
        (string? Failed, bool IsUndone) result = await ApplyInOrderAsync(batch, connection, transaction, cancel);
        if (!result.IsUndone)
        {
            await RemoveOldAsync(transaction, cancel);
            await transaction.CommitAsync(cancel);
        }
        return result;
    }

    private async Task<(string? Failed, bool IsUndone)> ApplyInOrderAsync(
        Batch batch, SqlConnection connection, SqlTransaction transaction, CancellationToken cancel)
    {
        foreach (@@Poller@@Change change in batch.Changes)
        {
            transaction.Save(Savepoint);
            try
            {
                if (await RecordAsync(batch.Poller, change.Id, transaction, cancel))
                {
                    await handler.HandleAsync(change, transaction, cancel);
                }
            }
            catch (EventFailedException error)
            {
                log.LogError(error, "Event {EventId} of poller {Poller} failed", change.Id, batch.Poller);
                if (!await IsUsableAsync(connection, transaction, cancel))
                {
                    return (change.Id, true);
                }
                transaction.Rollback(Savepoint);
                return (change.Id, false);
            }
        }
        return (null, false);
    }

    // Some errors, such as a failed conversion or one in a trigger, doom the transaction or roll it back at once: -1 or 0.
    private static async Task<bool> IsUsableAsync(
        SqlConnection connection, SqlTransaction transaction, CancellationToken cancel)
    {
        await using var state = new SqlCommand("SELECT XACT_STATE()", connection, transaction);
        return Convert.ToInt16(await state.ExecuteScalarAsync(cancel), CultureInfo.InvariantCulture) == 1;
    }

    // Records an event as processed; returns whether it is new.
    private static async Task<bool> RecordAsync(
        string poller, string id, SqlTransaction transaction, CancellationToken cancel)
    {
        await using SqlCommand insert = Command(
            "INSERT INTO dbo.processed_events (poller_name, event_id) VALUES (@poller, @id)", transaction, poller);
        insert.Parameters.AddWithValue("@id", id);
        try
        {
            await insert.ExecuteNonQueryAsync(cancel);
            return true;
        }
        catch (SqlException error) when (error.Number is 2627 or 2601)
        {
            return false; // violation of a unique constraint or index: the key is there
        }
    }

    // Rejects a batch of an instance that lost its lease: it must not write after its successor.
    private static async Task AdmitAsync(Batch batch, SqlTransaction transaction, CancellationToken cancel)
    {
        (long Generation, long Token)? highest = null;
        await using (SqlCommand read = Command(
            "SELECT generation, token FROM dbo.fences WITH (UPDLOCK, HOLDLOCK) WHERE poller_name = @poller",
            transaction, batch.Poller))
        await using (SqlDataReader reader = await read.ExecuteReaderAsync(cancel))
        {
            if (await reader.ReadAsync(cancel))
            {
                highest = (reader.GetInt64(0), reader.GetInt64(1));
            }
        }
        var lease = (batch.Generation, batch.FencingToken);
        if (highest is { } found && lease.CompareTo(found) < 0)
        {
            throw new RejectedException(
                StatusCodes.Status409Conflict,
                "a newer lease has written",
                new { generation = found.Generation, fencing_token = found.Token });
        }
        string sql = highest is null
            ? "INSERT INTO dbo.fences (poller_name, generation, token) VALUES (@poller, @generation, @token)"
            : "UPDATE dbo.fences SET generation = @generation, token = @token WHERE poller_name = @poller";
        await using SqlCommand write = Command(sql, transaction, batch.Poller);
        write.Parameters.AddWithValue("@generation", batch.Generation);
        write.Parameters.AddWithValue("@token", batch.FencingToken);
        await write.ExecuteNonQueryAsync(cancel);
    }

    // An event is redelivered within hours. Keep ids longer than the longest time that a poller may be paused.
    private static async Task RemoveOldAsync(SqlTransaction transaction, CancellationToken cancel)
    {
        await using var remove = new SqlCommand(
            "DELETE TOP (1000) FROM dbo.processed_events WHERE processed_at < DATEADD(day, -30, SYSUTCDATETIME())",
            transaction.Connection, transaction);
        await remove.ExecuteNonQueryAsync(cancel);
    }

    private static SqlCommand Command(string sql, SqlTransaction transaction, string poller)
    {
        var command = new SqlCommand(sql, transaction.Connection, transaction);
        command.Parameters.AddWithValue("@poller", poller);
        return command;
    }
}
