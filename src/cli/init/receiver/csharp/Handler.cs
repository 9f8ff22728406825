using Microsoft.Data.SqlClient;
using Microsoft.Extensions.Logging;
using Receiver.Core;

namespace Receiver;

/// <summary>The file to edit: what happens with each change of <c>@@table@@</c>.</summary>
public sealed class @@Poller@@Handler(ILogger<@@Poller@@Handler> log)
{
    /// <summary>
    /// Applies one change. The transaction also records the change's id: use it and its connection for your work, and
    /// do not commit it. Throw <see cref="EventFailedException"/> if this change itself cannot be applied, such as a
    /// value that your target rejects. Let every other exception pass: the whole batch is then redelivered later.
    /// </summary>
    public Task HandleAsync(@@Poller@@Change change, SqlTransaction transaction, CancellationToken cancel)
    {
        if (change.Row is null)
        {
            log.LogInformation("Deleted {Key}", change.Key);
        }
        else
        {
            log.LogInformation("{Operation} {Row}", change.Operation, change.Row);
        }
        return Task.CompletedTask;
    }
}
