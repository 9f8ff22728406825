using System.Globalization;
using System.IO.Compression;
using System.Security.Cryptography;
using System.Text;
using System.Text.Json;
using Microsoft.AspNetCore.Http;
using Microsoft.Extensions.Configuration;
using Microsoft.Extensions.Logging;

namespace Receiver.Core;

/// <summary>
/// This event cannot be applied, and the reason lies in the event itself. Throw it for nothing else: any other exception
/// means that nothing can be applied now, so that the whole batch is redelivered later.
/// </summary>
public sealed class EventFailedException(string message, Exception? cause = null) : Exception(message, cause);

/// <summary>The request is answered with this status; no event of it is applied.</summary>
public sealed class RejectedException(int status, string reason, object? fence = null) : Exception(reason)
{
    public int Status { get; } = status;

    public object? Fence { get; } = fence;
}

/// <summary>A status, and the object to answer with.</summary>
public sealed record Reply(int Status, object Body);

/// <summary>A batch of changes, in order.</summary>
public sealed record Batch(
    string Poller, long Generation, long FencingToken, IReadOnlyList<@@Poller@@Change> Changes);

/// <summary>Applies batches.</summary>
public interface IBatchStore
{
    /// <summary>Applies a batch in order; returns the id of the first change that failed, or <c>null</c>.</summary>
    Task<string?> ApplyAsync(Batch batch, CancellationToken cancel);
}

/// <summary>The settings, checked at start.</summary>
public sealed record ReceiverSettings(byte[][] Keys, string Database)
{
    /// <summary>Reads the settings, and throws if one is missing or invalid.</summary>
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
            throw new InvalidOperationException($"secret {index + 1} of WEBHOOK_SECRETS is not `whsec_` and base64");
        }
        return key[..length];
    }
}

/// <summary>Answers a request: signature, limits, parsing, statuses.</summary>
public sealed class BatchReceiver(
    ReceiverSettings settings, IBatchStore store, TimeProvider clock, ILogger<BatchReceiver> log)
{
    /// <summary>A small request may unpack to a huge one.</summary>
    public const int BodyBytesMax = 64 * 1024 * 1024;

    /// <summary>Reject a request that is older or newer than this: it may be a recorded one, sent again.</summary>
    private static readonly TimeSpan Tolerance = TimeSpan.FromMinutes(5);

    public async Task<Reply> ReceiveAsync(IHeaderDictionary headers, Stream body, CancellationToken cancel)
    {
        string batchId = headers["webhook-id"].ToString();
        try
        {
            byte[] text = await ReadAsync(headers, body, cancel);
            Verify(headers, text);
            Batch batch = Parse(text);
            log.LogInformation(
                "Batch {BatchId} of poller {Poller}, attempt {Attempt}: {Count} events",
                batchId, batch.Poller, headers["x-highwater-attempt"].ToString(), batch.Changes.Count);
            string? failed = await store.ApplyAsync(batch, cancel);
            // Everything before it is applied; it and what follows are redelivered.
            object[] failures = failed is null ? [] : [new { itemIdentifier = failed }];
            return new Reply(StatusCodes.Status200OK, new { batchItemFailures = failures });
        }
        catch (RejectedException rejected)
        {
            log.LogWarning("Batch {BatchId} rejected: {Reason}", batchId, rejected.Message);
            return new Reply(rejected.Status, new { error = rejected.Message, fence = rejected.Fence });
        }
        catch (Exception error)
        {
            // The whole batch is redelivered; the log has the reason.
            log.LogError(error, "Batch {BatchId} failed", batchId);
            return new Reply(
                StatusCodes.Status503ServiceUnavailable, new { error = "the batch cannot be applied now" });
        }
    }

    // Returns the body as it is signed.
    private static async Task<byte[]> ReadAsync(IHeaderDictionary headers, Stream raw, CancellationToken cancel)
    {
        string encoding = headers.ContentEncoding.ToString().Trim();
        bool isPacked = encoding.Equals("gzip", StringComparison.OrdinalIgnoreCase);
        if (!isPacked && encoding.Length > 0 && !encoding.Equals("identity", StringComparison.OrdinalIgnoreCase))
        {
            throw new RejectedException(
                StatusCodes.Status400BadRequest, "content-encoding is neither gzip nor identity");
        }
        await using Stream stream = isPacked ? new GZipStream(raw, CompressionMode.Decompress) : raw;
        using var body = new MemoryStream();
        var chunk = new byte[81920];
        try
        {
            for (int read; (read = await stream.ReadAsync(chunk, cancel)) > 0;)
            {
                if (body.Length + read > BodyBytesMax)
                {
                    // 413 makes the sender halve the batch.
                    throw new RejectedException(
                        StatusCodes.Status413PayloadTooLarge, $"the body is larger than {BodyBytesMax} bytes");
                }
                body.Write(chunk, 0, read);
            }
        }
        catch (InvalidDataException)
        {
            throw new RejectedException(
                StatusCodes.Status400BadRequest, "the body is not gzip, though content-encoding says so");
        }
        catch (BadHttpRequestException error)
        {
            // 413 where the body is beyond Kestrel's limit.
            throw new RejectedException(error.StatusCode, error.Message);
        }
        return body.ToArray();
    }

    private void Verify(IHeaderDictionary headers, byte[] body)
    {
        string id = headers["webhook-id"].ToString(), timestamp = headers["webhook-timestamp"].ToString();
        if (!long.TryParse(timestamp, NumberStyles.None, CultureInfo.InvariantCulture, out long seconds)
            || Math.Abs(clock.GetUtcNow().ToUnixTimeSeconds() - seconds) > Tolerance.TotalSeconds)
        {
            throw new RejectedException(
                StatusCodes.Status401Unauthorized, "webhook-timestamp is missing or too far from now");
        }
        byte[] signed = [.. Encoding.UTF8.GetBytes($"{id}.{timestamp}."), .. body];
        byte[][] given = headers["webhook-signature"].ToString().Split(' ').Select(Encoding.UTF8.GetBytes).ToArray();
        bool isGood = settings.Keys.Any(key =>
        {
            byte[] wanted = Encoding.UTF8.GetBytes("v1," + Convert.ToBase64String(HMACSHA256.HashData(key, signed)));
            // Constant time, so that the duration of the comparison reveals nothing.
            return given.Any(one => CryptographicOperations.FixedTimeEquals(one, wanted));
        });
        if (!isGood)
        {
            throw new RejectedException(StatusCodes.Status401Unauthorized, "webhook-signature is missing or wrong");
        }
    }

    // Returns the batch in a body of the form `highwater`.
    private static Batch Parse(byte[] body)
    {
        try
        {
            using JsonDocument document = JsonDocument.Parse(body);
            JsonElement batch = document.RootElement;
            JsonElement events = Column.Required(batch, "events", value => value);
            return new Batch(
                Column.Required(batch, "poller", Column.AsText),
                Column.Required(batch, "generation", Column.AsInt64),
                Column.Required(batch, "fencing_token", Column.AsInt64),
                events.EnumerateArray().Select(@@Poller@@Change.FromJson).ToArray());
        }
        catch (Exception error) when (error is JsonException or InvalidColumnException or InvalidOperationException)
        {
            throw new RejectedException(
                StatusCodes.Status400BadRequest, $"the body is no batch of the form `highwater`: {error.Message}");
        }
    }
}
