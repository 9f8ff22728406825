using Microsoft.AspNetCore.Http;
using Microsoft.AspNetCore.Mvc;
using Microsoft.Azure.Functions.Worker;
using Receiver.Core;

namespace Receiver;

/// <summary>The signature authenticates requests, so no function key is needed.</summary>
public sealed class @@Poller@@Function(BatchReceiver receiver)
{
    [Function("@@poller@@")]
    public async Task<IActionResult> Run(
        [HttpTrigger(AuthorizationLevel.Anonymous, "post", Route = "@@poller@@")] HttpRequest request,
        CancellationToken cancel)
    {
        Reply reply = await receiver.ReceiveAsync(request.Headers, request.Body, cancel);
        return new ObjectResult(reply.Body) { StatusCode = reply.Status };
    }
}
