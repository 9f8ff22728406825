// Starts the app of Changes.cs (.NET 10, isolated worker with ASP.NET Core integration). Packages:
// Microsoft.Azure.Functions.Worker, …Worker.Sdk, …Worker.Extensions.Http.AspNetCore and Microsoft.Data.SqlClient.
using Microsoft.AspNetCore.Server.Kestrel.Core;
using Microsoft.Azure.Functions.Worker;
using Microsoft.Azure.Functions.Worker.Builder;
using Microsoft.Extensions.DependencyInjection;
using Microsoft.Extensions.Hosting;

var builder = FunctionsApplication.CreateBuilder(args);
builder.ConfigureFunctionsWebApplication();
// Read here and not in the function, so that an app without its settings does not start.
builder.Services.AddSingleton(ReceiverSettings.Read(builder.Configuration));
builder.Services.AddSingleton(TimeProvider.System);
// Kestrel's own limit is 30 MB, beyond which it cuts the connection.
builder.Services.Configure<KestrelServerOptions>(
    options => options.Limits.MaxRequestBodySize = Changes.BodyBytesMax);
builder.Build().Run();
