package kind

type Kind string

const (
	A    Kind = "a"
	B    Kind = "b"
	none Kind = ""
)

var None = none
