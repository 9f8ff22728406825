using System.IO.Compression;
using System.Security.Cryptography;
using System.Text;
using System.Text.Json.Nodes;
using Microsoft.AspNetCore.Http;
using Microsoft.Extensions.Configuration;
using Microsoft.Extensions.Logging.Abstractions;
using Receiver.Core;
using Xunit;

namespace Receiver.Tests;

/// <summary>The receiver against recorded deliveries; a store in memory takes the place of the database.</summary>
public sealed class ReceiverTests
{
    private const string Secret = "whsec_YSBzZWNyZXQgb2YgdGhlIHRlc3RzIGFsb25l";
    private const string Other = "whsec_YW5vdGhlciBzZWNyZXQ=";
    private const long Now = 1_790_000_000;

    private static readonly byte[] Delivery = File.ReadAllBytes("batch.json");

    private readonly MemoryStore store = new();
    private readonly BatchReceiver receiver;

    public ReceiverTests()
    {
        var settings = ReceiverSettings.Read(Configuration(Secret, "Server=none"));
        receiver = new BatchReceiver(settings, store, new FixedClock(), NullLogger<BatchReceiver>.Instance);
    }

    private static string[] Ids =>
        JsonNode.Parse(Delivery)!["events"]!.AsArray().Select(change => (string)change!["id"]!).ToArray();

    [Fact]
    public async Task Events_are_applied_in_order_and_once()
    {
        for (var count = 0; count < 2; count++)
        {
            Assert.Equal(200, (await PostAsync(Delivery)).Status);
            Assert.Equal(Ids, store.Applied);
        }
    }

    [Fact]
    public async Task A_deleted_row_has_no_columns()
    {
        JsonNode change = JsonNode.Parse(Delivery)!["events"]![0]!.DeepClone();
        change["op"] = "delete";
        change["after"] = null;
        Assert.Equal(200, (await PostAsync(With("events", new JsonArray(change)))).Status);
        Assert.Null(store.Last!.Changes[0].Row);
    }

    [Fact]
    public async Task An_event_that_fails_is_named()
    {
        store.Failing = Ids[1];
        Reply reply = await PostAsync(Delivery);
        Assert.Equal(200, reply.Status);
        Assert.Contains(Ids[1], System.Text.Json.JsonSerializer.Serialize(reply.Body));
        Assert.Equal(Ids[..1], store.Applied);
    }

    [Fact]
    public async Task Any_other_exception_is_answered_with_503()
    {
        store.Error = new InvalidOperationException("the target is away");
        await AssertRejectedAsync(503, Delivery, Sign(Delivery));
    }

    [Fact]
    public async Task A_wrong_signature_is_rejected()
    {
        await AssertRejectedAsync(401, Delivery, Sign(Delivery, Other));
        await AssertRejectedAsync(401, Delivery, Sign("another body"u8.ToArray()));
        await AssertRejectedAsync(401, Delivery, new HeaderDictionary());
    }

    [Fact]
    public async Task An_old_request_is_rejected_after_five_minutes()
    {
        await AssertRejectedAsync(401, Delivery, Sign(Delivery, Secret, Now - 301));
        await AssertRejectedAsync(401, Delivery, Sign(Delivery, Secret, Now + 301));
        Assert.Equal(200, (await PostAsync(Delivery, Sign(Delivery, Secret, Now - 300))).Status);
        Assert.Equal(200, (await PostAsync(Delivery, Sign(Delivery, Secret, Now + 300))).Status);
    }

    [Theory]
    [InlineData("")]
    [InlineData("null")]
    [InlineData("[]")]
    [InlineData("{")]
    [InlineData("{}")]
    public async Task What_is_no_batch_is_rejected(string text)
    {
        byte[] body = Encoding.UTF8.GetBytes(text);
        await AssertRejectedAsync(400, body, Sign(body));
    }

    [Theory]
    [InlineData("poller")]
    [InlineData("generation")]
    [InlineData("events")]
    public async Task A_batch_without_a_field_is_rejected(string field)
    {
        byte[] body = With(field, null);
        await AssertRejectedAsync(400, body, Sign(body));
    }

    [Fact]
    public async Task A_gzip_body_is_accepted_and_a_false_one_rejected()
    {
        IHeaderDictionary headers = Sign(Delivery);
        headers.ContentEncoding = "gzip";
        await AssertRejectedAsync(400, Delivery, headers);
        headers.ContentEncoding = "br";
        await AssertRejectedAsync(400, Delivery, headers);
        headers.ContentEncoding = "GZIP";
        Assert.Equal(200, (await PostAsync(Gzip(Delivery), headers)).Status);
    }

    [Fact]
    public async Task A_body_above_the_limit_is_answered_so_that_the_batch_is_halved()
    {
        var large = new byte[BatchReceiver.BodyBytesMax + 1];
        await AssertRejectedAsync(413, large, new HeaderDictionary());
        await AssertRejectedAsync(413, Gzip(large), new HeaderDictionary { ["content-encoding"] = "gzip" });
    }

    [Theory]
    [InlineData("")]
    [InlineData("bm90IGEgc2VjcmV0")]
    [InlineData("whsec_")]
    [InlineData("whsec_?")]
    public void An_app_without_its_settings_does_not_start(string secrets)
    {
        Assert.Throws<InvalidOperationException>(() => ReceiverSettings.Read(Configuration(secrets, "Server=none")));
        Assert.Throws<InvalidOperationException>(() => ReceiverSettings.Read(Configuration(Secret, "")));
    }

    private static IConfiguration Configuration(string secrets, string database) =>
        new ConfigurationBuilder()
            .AddInMemoryCollection(
                new Dictionary<string, string?> { ["WEBHOOK_SECRETS"] = secrets, ["DATABASE"] = database })
            .Build();

    private static IHeaderDictionary Sign(byte[] body, string secret = Secret, long at = Now)
    {
        byte[] key = Convert.FromBase64String(secret["whsec_".Length..]);
        byte[] signed = [.. Encoding.UTF8.GetBytes($"batch_1.{at}."), .. body];
        return new HeaderDictionary
        {
            ["webhook-id"] = "batch_1",
            ["webhook-timestamp"] = at.ToString(System.Globalization.CultureInfo.InvariantCulture),
            ["webhook-signature"] = "v1," + Convert.ToBase64String(HMACSHA256.HashData(key, signed)),
        };
    }

    private static byte[] With(string field, JsonNode? value)
    {
        JsonNode batch = JsonNode.Parse(Delivery)!;
        batch[field] = value;
        return Encoding.UTF8.GetBytes(batch.ToJsonString());
    }

    private static byte[] Gzip(byte[] body)
    {
        using var packed = new MemoryStream();
        using (var stream = new GZipStream(packed, CompressionLevel.Fastest))
        {
            stream.Write(body);
        }
        return packed.ToArray();
    }

    private Task<Reply> PostAsync(byte[] raw, IHeaderDictionary? headers = null) =>
        receiver.ReceiveAsync(headers ?? Sign(raw), new MemoryStream(raw), CancellationToken.None);

    private async Task AssertRejectedAsync(int status, byte[] raw, IHeaderDictionary headers)
    {
        Assert.Equal(status, (await PostAsync(raw, headers)).Status);
        Assert.Empty(store.Applied);
    }

    private sealed class FixedClock : TimeProvider
    {
        public override DateTimeOffset GetUtcNow() => DateTimeOffset.FromUnixTimeSeconds(Now);
    }

    private sealed class MemoryStore : IBatchStore
    {
        public List<string> Applied { get; } = [];

        public Batch? Last { get; private set; }

        public string? Failing { get; set; }

        public Exception? Error { get; set; }

        public Task<string?> ApplyAsync(Batch batch, CancellationToken cancel)
        {
            if (Error is not null)
            {
                throw Error;
            }
            Last = batch;
            foreach (@@Poller@@Change change in batch.Changes)
            {
                if (change.Id == Failing)
                {
                    return Task.FromResult<string?>(change.Id);
                }
                if (!Applied.Contains(change.Id))
                {
                    Applied.Add(change.Id);
                }
            }
            return Task.FromResult<string?>(null);
        }
    }
}
