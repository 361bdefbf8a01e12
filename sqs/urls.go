package sqs

import (
	"net/http"
	"strings"
)

// maxHost bounds the Host header, because an answer may repeat it in 1,000 URLs. The name of a host has 253 bytes at
// most.
const maxHost = 300 // bytes

func checkHost(r *http.Request) error {
	if len(r.Host) <= maxHost {
		return nil
	}
	return refuse(http.StatusBadRequest, "MalformedHttpRequestException", "MalformedHttpRequestException",
		"The Host header has %d bytes: %d are allowed.", len(r.Host), maxHost)
}

// base is the scheme and the host by which the client has come.
func (s *Server) base(r *http.Request) string {
	if s.options.URL != "" {
		return strings.TrimSuffix(s.options.URL, "/")
	}
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// path is the path of a request below that of Options.URL, without slashes at its end: / or /ACCOUNT/QUEUE.
func (s *Server) path(r *http.Request) string {
	below, ok := strings.CutPrefix(r.URL.Path, s.root)
	if !ok || below != "" && below[0] != '/' { // a proxy has removed the path of the URL
		below = r.URL.Path
	}
	return "/" + strings.Trim(below, "/")
}

// queueName is the name of the queue that a request is about: the end of its URL, or of the request's path. Slashes may
// follow the name.
func (c *call) queueName(queueURL string) (string, error) {
	if queueURL == "" {
		queueURL = c.path
	}
	queueURL = strings.TrimRight(queueURL, "/")
	name := queueURL[strings.LastIndexByte(queueURL, '/')+1:]
	if name == "" {
		return "", missing("QueueUrl")
	}
	c.queue = name
	return name, nil
}

// queueURL is the URL of a queue, for the client.
func (s *Server) queueURL(c *call, name string) string {
	return c.base + "/" + s.options.Account + "/" + name
}
