using Microsoft.AspNetCore.Server.Kestrel.Core;
using Microsoft.Azure.Functions.Worker;
using Microsoft.Azure.Functions.Worker.Builder;
using Microsoft.Extensions.DependencyInjection;
using Microsoft.Extensions.Hosting;
using Receiver;
using Receiver.Core;

var builder = FunctionsApplication.CreateBuilder(args);
builder.ConfigureFunctionsWebApplication();
builder.Services.AddApplicationInsightsTelemetryWorkerService().ConfigureFunctionsApplicationInsights();
// Read here and not in the function, so that an app without its settings does not start.
builder.Services.AddSingleton(ReceiverSettings.Read(builder.Configuration));
builder.Services.AddSingleton(TimeProvider.System);
builder.Services.AddSingleton<@@Poller@@Handler>();
builder.Services.AddSingleton<IBatchStore, SqlOnce>();
builder.Services.AddSingleton<BatchReceiver>();
// Kestrel's own limit is 30 MB, beyond which it cuts the connection. One byte more than the receiver's limit, so that
// the receiver answers with 413.
builder.Services.Configure<KestrelServerOptions>(
    options => options.Limits.MaxRequestBodySize = BatchReceiver.BodyBytesMax + 1);
builder.Build().Run();
