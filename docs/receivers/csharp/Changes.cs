// Receives Highwater's batches as an Azure Function (.NET 8, isolated worker). A text to start from: unlike
// its neighbours in JavaScript and Python, it is not run by Highwater's tests.
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

public class Changes
{
    // A request that is older or younger than this may be one that somebody kept and sends again.
    private static readonly TimeSpan Tolerance = TimeSpan.FromMinutes(5);
    // A small request may unpack to a huge one.
    private const int BodyBytesMax = 64 * 1024 * 1024;

    [Function("changes")]
    public async Task<IActionResult> Run(
        [HttpTrigger(AuthorizationLevel.Function, "post")] HttpRequest request,
        CancellationToken cancelled)
    {
        var body = await ReadAsync(request, cancelled);
        if (body is null) return new BadRequestObjectResult("the body is too large");
        if (!IsSigned(request.Headers, body)) return new UnauthorizedResult();

        using var batch = JsonDocument.Parse(body);
        var poller = batch.RootElement.GetProperty("poller").GetString()!;
        await using var connection = new SqlConnection(Environment.GetEnvironmentVariable("DATABASE"));
        await connection.OpenAsync(cancelled);
        foreach (var change in batch.RootElement.GetProperty("events").EnumerateArray())
        {
            var id = change.GetProperty("id").GetString()!;
            try
            {
                await TakeOnceAsync(connection, poller, id, change, cancelled);
            }
            catch (Exception) when (!cancelled.IsCancellationRequested)
            {
                // Everything before it is taken; it and what follows come again.
                return new OkObjectResult(new { batchItemFailures = new[] { new { itemIdentifier = id } } });
            }
        }
        return new OkResult();
    }

    // One transaction for the work and the note that it is done.
    private static async Task TakeOnceAsync(
        SqlConnection connection, string poller, string id, JsonElement change, CancellationToken cancelled)
    {
        await using var transaction = (SqlTransaction)await connection.BeginTransactionAsync(cancelled);
        await using var note = new SqlCommand(
            "INSERT INTO processed_events (poller_name, event_id) SELECT @poller, @id WHERE NOT EXISTS ("
            + "SELECT 1 FROM processed_events WITH (UPDLOCK, HOLDLOCK) WHERE poller_name = @poller AND event_id = @id)",
            connection, transaction);
        note.Parameters.AddWithValue("@poller", poller);
        note.Parameters.AddWithValue("@id", id);
        if (await note.ExecuteNonQueryAsync(cancelled) == 1)
        {
            await ApplyAsync(connection, transaction, change, cancelled);
        }
        await transaction.CommitAsync(cancelled);
    }

    private static Task ApplyAsync(
        SqlConnection connection, SqlTransaction transaction, JsonElement change, CancellationToken cancelled)
    {
        // Your work, with this connection and transaction; `after` is null for a delete.
        return Task.CompletedTask;
    }

    private static bool IsSigned(IHeaderDictionary headers, byte[] body)
    {
        string id = headers["webhook-id"].ToString(), timestamp = headers["webhook-timestamp"].ToString();
        if (!long.TryParse(timestamp, NumberStyles.None, CultureInfo.InvariantCulture, out var seconds)) return false;
        var age = DateTimeOffset.UtcNow.ToUnixTimeSeconds() - seconds;
        if (Math.Abs(age) > Tolerance.TotalSeconds) return false;

        byte[] signed = [.. Encoding.UTF8.GetBytes($"{id}.{timestamp}."), .. body];
        var given = headers["webhook-signature"].ToString().Split(' ').Select(Encoding.UTF8.GetBytes).ToArray();
        return Environment.GetEnvironmentVariable("WEBHOOK_SECRETS")!.Split(' ').Any(secret =>
        {
            var key = Convert.FromBase64String(secret["whsec_".Length..]);
            var wanted = Encoding.UTF8.GetBytes("v1," + Convert.ToBase64String(HMACSHA256.HashData(key, signed)));
            return given.Any(one => CryptographicOperations.FixedTimeEquals(one, wanted));
        });
    }

    // Returns the body as it is signed; null where it is too large.
    private static async Task<byte[]?> ReadAsync(HttpRequest request, CancellationToken cancelled)
    {
        var isPacked = request.Headers.ContentEncoding == "gzip";
        await using var stream = isPacked ? new GZipStream(request.Body, CompressionMode.Decompress) : request.Body;
        using var body = new MemoryStream();
        var chunk = new byte[81920];
        for (int read; (read = await stream.ReadAsync(chunk, cancelled)) > 0;)
        {
            if (body.Length + read > BodyBytesMax) return null;
            body.Write(chunk, 0, read);
        }
        return body.ToArray();
    }
}
