// Module page tests the gateway's page in a real browser, against a running Berth.
//
// It is a module of its own because of what drives the browser, which nothing else needs. It knows Berth as people do: by its
// binary, and by what the gateway serves over HTTP.
module github.com/berth-scheduler/berth/test/page

go 1.26.0

require (
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.22.1
)

require github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
