package sqs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/traits"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// apiError is an error as the client gets it.
type apiError struct {
	shape     string // __type of JSON
	code      string // of the Query protocol, and of the entries of batches
	status    int
	text      string
	queryText string // the text of the Query protocol, if that is another
}

func (e *apiError) Error() string { return e.code + ": " + e.text }

// senderFault says whose fault it is.
func (e *apiError) senderFault() bool { return e.status < http.StatusInternalServerError }

// RefusedError says that a declared queue is refused, as CreateQueue or SetQueueAttributes would refuse it. The
// declaration must be corrected.
type RefusedError struct {
	Queue string // its name
	Err   error  // why
}

func (e *RefusedError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return fmt.Sprintf("queue %q: %v", e.Queue, e.Err)
}
func (e *RefusedError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

const (
	modelled   = "com.amazonaws.sqs#"
	unmodelled = "com.amazon.coral.service#"
)

// fail makes an error that the service's model has.
func fail(s *smithy.Schema, format string, args ...any) *apiError {
	e := &apiError{
		shape: modelled + s.ID().Name, code: s.ID().Name, status: http.StatusBadRequest,
		text: readable(fmt.Sprintf(format, args...)),
	}
	if t, ok := smithy.SchemaTrait[*traits.AWSQueryError](s); ok {
		e.code, e.status = t.ErrorCode, t.StatusCode
	}
	return e
}

// refuse makes an error that the model does not have, of a status.
func refuse(status int, shape, code, format string, args ...any) *apiError {
	return &apiError{
		shape: unmodelled + shape, code: code, status: status, text: readable(fmt.Sprintf(format, args...)),
	}
}

func invalid(format string, args ...any) *apiError {
	return refuse(http.StatusBadRequest, "InvalidParameterValueException", "InvalidParameterValue", format, args...)
}

func invalidValue(value any, parameter, reason string) *apiError {
	return invalid("Value %v for parameter %s is invalid. Reason: %s", value, parameter, reason)
}

func missing(parameter string) *apiError {
	return refuse(http.StatusBadRequest, "MissingRequiredParameterException", "MissingParameter",
		"The request must contain the parameter %s.", parameter)
}

func malformed(err error) *apiError {
	var known *apiError
	if errors.As(err, &known) {
		return known
	}
	if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) {
		err = fmt.Errorf("%s cannot be a JSON %s", cmp.Or(wrong.Field, "it"), wrong.Value)
	}
	return refuse(http.StatusBadRequest, "SerializationException", "MalformedInput",
		"the request cannot be read: %v", err)
}

func noQueue() *apiError {
	e := fail(schemas.QueueDoesNotExist, "The specified queue does not exist.")
	e.queryText = "The specified queue does not exist for this wsdl version."
	return e
}

func badHandle(handle string) *apiError {
	return fail(schemas.ReceiptHandleIsInvalid, "The input receipt handle %q is not a valid receipt handle.", handle)
}

func expired(handle string) *apiError {
	return invalidValue(handle, "ReceiptHandle", "The receipt handle has expired.")
}

// errUnknownOperation is the answer to a GET of a queue's URL, for example by a browser.
var errUnknownOperation = refuse(http.StatusNotFound, "UnknownOperationException", "UnknownOperationException", "")

// told returns err as the client gets it. An error that the server does not expect becomes an internal error, and the
// client does not get its text. An unknown outcome is such an error, even if a later attempt was refused: a refusal
// would say that nothing was done.
func told(err error) *apiError {
	var known *apiError
	var limit *layer.LimitError
	var full *layer.FullError
	switch {
	case kv.MaybeCommitted(err):
	case errors.As(err, &known):
		return known
	case errors.Is(err, layer.ErrNoQueue):
		return noQueue()
	case errors.As(err, &full): // SDKs send again later
		return fail(schemas.RequestThrottled, "The message group %q may have %d messages (max_waiting), and is full.",
			full.Group, full.Max)
	case errors.As(err, &limit):
		return invalid("One or more parameters are invalid. Reason: %s", limit)
	}
	return refuse(http.StatusInternalServerError, "InternalFailure", "InternalFailure",
		"We encountered an internal error. Please try again.")
}
