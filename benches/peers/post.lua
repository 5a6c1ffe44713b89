-- For wrk: POSTs the lines of $BODIES in turn, from $OFFSET on. The headers name each body's prefix, for policies that hash a header.
local requests, number = {}, 0

function init()
  for line in io.lines(os.getenv("BODIES")) do
    local prefix = "p" .. (line:match("pfx%-(%d+)") or "0")
    local fields = { ["Content-Type"] = "application/json", ["x-prefix"] = prefix, ["x-session-id"] = prefix }
    requests[#requests + 1] = wrk.format("POST", "/v1/chat/completions", fields, line)
  end
  number = math.floor(tonumber(os.getenv("OFFSET") or "0"))
end

function request()
  number = number + 1
  return requests[(number - 1) % #requests + 1]
end

function done(summary)
  local errors = summary.errors
  io.write(string.format("WRK %d %d %d %d %d %d %d\n", summary.requests, summary.duration, errors.connect, errors.read, errors.write,
    errors.status, errors.timeout))
end
