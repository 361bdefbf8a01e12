package sqs

import (
	"net/http"
	"strings"
)

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

// queueName is the name of the queue that a request is about: the end of its URL, or of the request's path.
func (c *call) queueName(queueURL string) (string, error) {
	if queueURL == "" {
		queueURL = c.path
	}
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
