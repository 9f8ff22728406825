// Receives Highwater's batches as an Azure Function; Program.cs starts it. A text to start from: unlike its
// neighbours in JavaScript and Python it is not compiled by Highwater's tests, which run its SQL only.
//
// Settings: WEBHOOK_SECRETS, with secrets separated by blanks, and DATABASE, a SQL Server with the table
//   CREATE TABLE processed_events (poller_name nvarchar(64) NOT NULL, event_id char(32) NOT NULL,
//       PRIMARY KEY (poller_name, event_id));
using System.Globalization;
using System.IO.Compression;
using System.Security.Cryptography;
using System.Text;
using System.Text.Json;
using Microsoft.AspNetCore.Http;
using Microsoft.AspNetCore.Mvc;
using Microsoft.Azure.Functions.Worker;
using Microsoft.Data.SqlClient;
using Microsoft.Extensions.Configuration;
using Microsoft.Extensions.Logging;

/// <summary>
/// This event cannot be applied, and the reason lies in the event itself. Throw it for nothing else: a
/// database that is away is not the fault of an event. Let that exception pass, so that the answer is 503
/// and the whole batch is redelivered later.
/// </summary>
public sealed class EventFailedException(string message, Exception? cause = null) : Exception(message, cause);

/// <summary>Answers the request with this status; no event of it is applied.</summary>
public sealed class RefusedException(int status, string reason) : Exception(reason)
{
    public int Status { get; } = status;
}

public sealed record ReceiverSettings(byte[][] Keys, string Database)
{
    /// <summary>Reads the settings, and throws if one is missing or wrong.</summary>
    public static ReceiverSettings Read(IConfiguration configuration)
    {
        string[] secrets = (configuration["WEBHOOK_SECRETS"] ?? "").Split(' ', StringSplitOptions.RemoveEmptyEntries);
        if (secrets.Length == 0)
        {
            throw new InvalidOperationException(
                "WEBHOOK_SECRETS is not set: expected secrets `whsec_…`, separated by blanks");
        }
        string? database = configuration["DATABASE"];
        if (string.IsNullOrWhiteSpace(database))
        {
            throw new InvalidOperationException("DATABASE is not set: expected a connection string");
        }
        return new ReceiverSettings(secrets.Select(KeyOf).ToArray(), database);
    }

    private static byte[] KeyOf(string secret, int index)
    {
        const string prefix = "whsec_";
        var key = new byte[secret.Length];
        if (!secret.StartsWith(prefix, StringComparison.Ordinal)
            || !Convert.TryFromBase64String(secret[prefix.Length..], key, out int length)
            || length == 0)
        {
            throw new InvalidOperationException(
                $"secret {index + 1} of WEBHOOK_SECRETS is not `whsec_` and base64");
        }
        return key[..length];
    }
}

public sealed class Changes(ReceiverSettings settings, TimeProvider clock, ILogger<Changes> log)
{
    /// <summary>A small request may unpack to a huge one.</summary>
    public const int BodyBytesMax = 64 * 1024 * 1024;

    /// <summary>Reject a request that is older or newer than this: it may be a recorded one, sent again.</summary>
    private static readonly TimeSpan Tolerance = TimeSpan.FromMinutes(5);

    [Function("changes")]
    public async Task<IActionResult> Run(
        [HttpTrigger(AuthorizationLevel.Function, "post")] HttpRequest request,
        CancellationToken cancel)
    {
        string batchId = request.Headers["webhook-id"].ToString();
        try
        {
            byte[] body = await ReadAsync(request, cancel);
            Verify(request.Headers, body);
            using JsonDocument batch = ParseBatch(body);
            return await ApplyInOrderAsync(batch.RootElement, cancel);
        }
        catch (RefusedException refused)
        {
            log.LogWarning("Batch {BatchId} refused: {Reason}", batchId, refused.Message);
            return new ObjectResult(new { error = refused.Message }) { StatusCode = refused.Status };
        }
        catch (Exception error) when (!cancel.IsCancellationRequested)
        {
            // The whole batch is redelivered; the log has the reason.
            log.LogError(error, "Batch {BatchId} failed", batchId);
            return new ObjectResult(new { error = "the batch cannot be applied now" })
            {
                StatusCode = StatusCodes.Status503ServiceUnavailable,
            };
        }
    }

    private async Task<IActionResult> ApplyInOrderAsync(JsonElement batch, CancellationToken cancel)
    {
        string poller = batch.GetProperty("poller").GetString()!;
        await using var connection = new SqlConnection(settings.Database);
        await connection.OpenAsync(cancel);
        foreach (JsonElement change in batch.GetProperty("events").EnumerateArray())
        {
            string id = change.GetProperty("id").GetString()!;
            try
            {
                await ApplyOnceAsync(connection, poller, id, change, cancel);
            }
            catch (EventFailedException error)
            {
                log.LogError(error, "Event {EventId} of poller {Poller} failed", id, poller);
                // Everything before it is applied; it and what follows are redelivered.
                return new OkObjectResult(new { batchItemFailures = new[] { new { itemIdentifier = id } } });
            }
        }
        return new OkResult();
    }

    // One transaction for the work and the note that it is done. Disposing of it rolls back.
    private static async Task ApplyOnceAsync(
        SqlConnection connection, string poller, string id, JsonElement change, CancellationToken cancel)
    {
        await using var transaction = (SqlTransaction)await connection.BeginTransactionAsync(cancel);
        if (!await NoteAsync(connection, transaction, poller, id, cancel)) return;
        await ApplyAsync(connection, transaction, change, cancel);
        await transaction.CommitAsync(cancel);
    }

    // Notes an event as processed; returns whether it was not before. The unique key decides, and never the
    // number of affected rows: with SET NOCOUNT ON the client reports -1 for every statement.
    private static async Task<bool> NoteAsync(
        SqlConnection connection, SqlTransaction transaction, string poller, string id, CancellationToken cancel)
    {
        await using var note = new SqlCommand(
            "INSERT INTO processed_events (poller_name, event_id) VALUES (@poller, @id)", connection, transaction);
        note.Parameters.AddWithValue("@poller", poller);
        note.Parameters.AddWithValue("@id", id);
        try
        {
            await note.ExecuteNonQueryAsync(cancel);
            return true;
        }
        catch (SqlException error) when (error.Number is 2627 or 2601)
        {
            return false; // violation of a unique constraint or index: the key is there
        }
    }

    private static Task ApplyAsync(
        SqlConnection connection, SqlTransaction transaction, JsonElement change, CancellationToken cancel)
    {
        // Your work, with this connection and transaction; `after` is null for a delete. Throw
        // EventFailedException for an event that your target cannot take, whenever it comes.
        return Task.CompletedTask;
    }

    private void Verify(IHeaderDictionary headers, byte[] body)
    {
        string id = headers["webhook-id"].ToString(), timestamp = headers["webhook-timestamp"].ToString();
        if (!long.TryParse(timestamp, NumberStyles.None, CultureInfo.InvariantCulture, out long seconds)
            || Math.Abs(clock.GetUtcNow().ToUnixTimeSeconds() - seconds) > Tolerance.TotalSeconds)
        {
            throw new RefusedException(
                StatusCodes.Status401Unauthorized, "webhook-timestamp is missing or too far from now");
        }
        byte[] signed = [.. Encoding.UTF8.GetBytes($"{id}.{timestamp}."), .. body];
        byte[][] given = headers["webhook-signature"].ToString().Split(' ').Select(Encoding.UTF8.GetBytes).ToArray();
        bool isGood = settings.Keys.Any(key =>
        {
            byte[] wanted = Encoding.UTF8.GetBytes("v1," + Convert.ToBase64String(HMACSHA256.HashData(key, signed)));
            return given.Any(one => CryptographicOperations.FixedTimeEquals(one, wanted));
        });
        if (!isGood)
        {
            throw new RefusedException(
                StatusCodes.Status401Unauthorized, "webhook-signature is missing or wrong");
        }
    }

    // Returns the body as it is signed.
    private static async Task<byte[]> ReadAsync(HttpRequest request, CancellationToken cancel)
    {
        string encoding = request.Headers.ContentEncoding.ToString().Trim();
        bool isPacked = encoding.Equals("gzip", StringComparison.OrdinalIgnoreCase);
        if (!isPacked && encoding.Length > 0 && !encoding.Equals("identity", StringComparison.OrdinalIgnoreCase))
        {
            throw new RefusedException(
                StatusCodes.Status400BadRequest, "content-encoding is neither gzip nor identity");
        }
        await using Stream stream =
            isPacked ? new GZipStream(request.Body, CompressionMode.Decompress) : request.Body;
        using var body = new MemoryStream();
        var chunk = new byte[81920];
        try
        {
            for (int read; (read = await stream.ReadAsync(chunk, cancel)) > 0;)
            {
                if (body.Length + read > BodyBytesMax)
                {
                    // 413 makes the sender halve the batch.
                    throw new RefusedException(
                        StatusCodes.Status413PayloadTooLarge, $"the body is larger than {BodyBytesMax} bytes");
                }
                body.Write(chunk, 0, read);
            }
        }
        catch (InvalidDataException)
        {
            throw new RefusedException(
                StatusCodes.Status400BadRequest, "the body is not gzip, though content-encoding says so");
        }
        catch (BadHttpRequestException error)
        {
            // 413 where the body is beyond Kestrel's limit.
            throw new RefusedException(error.StatusCode, error.Message);
        }
        return body.ToArray();
    }

    // Returns the batch in a body of the form `highwater`.
    private static JsonDocument ParseBatch(byte[] body)
    {
        JsonDocument batch;
        try
        {
            batch = JsonDocument.Parse(body);
        }
        catch (JsonException)
        {
            throw new RefusedException(StatusCodes.Status400BadRequest, "the body is not JSON");
        }
        if (Mistake(batch.RootElement) is not { } mistake) return batch;
        batch.Dispose();
        throw new RefusedException(StatusCodes.Status400BadRequest, mistake);
    }

    private static string? Mistake(JsonElement batch)
    {
        if (batch.ValueKind != JsonValueKind.Object) return "the body is not an object: expected the form `highwater`";
        if (!Has(batch, "poller", JsonValueKind.String, out _)) return "`poller` is missing or of the wrong type";
        if (!Has(batch, "events", JsonValueKind.Array, out JsonElement events))
        {
            return "`events` is missing or of the wrong type";
        }
        bool areRight = events.EnumerateArray().All(
            change => change.ValueKind == JsonValueKind.Object && Has(change, "id", JsonValueKind.String, out _));
        return areRight ? null : "an event has no `id`";
    }

    private static bool Has(JsonElement parent, string name, JsonValueKind kind, out JsonElement value) =>
        parent.TryGetProperty(name, out value) && value.ValueKind == kind;
}
