package layer

// DefaultPage is the number of rows on a page of a list.
const DefaultPage = 100

// listPage is a page of a list while the page is filled: up to limit rows, of which the bodies stay below
// DefaultMaxBytes together, but for the first.
type listPage[T any] struct {
	rows  []T
	limit int
	size  int // bytes of bodies
}

// newListPage is an empty page. limit is the caller's, 0 = DefaultPage; unit says what the rows are.
func newListPage[T any](limit int, unit string) (*listPage[T], error) {
	if limit < 0 || limit > MaxBatch {
		return nil, &LimitError{What: "page", Unit: unit, Got: int64(limit), Min: 1, Max: MaxBatch}
	}
	if limit == 0 {
		limit = DefaultPage
	}
	return &listPage[T]{limit: limit}, nil
}

// add adds a row which has this body. A row that does not fit is the first of the next page.
func (p *listPage[T]) add(row T, body []byte) (fits bool) {
	n := len(p.rows)
	if p.size += len(body); n == p.limit || n > 0 && p.size > DefaultMaxBytes {
		return false
	}
	p.rows = append(p.rows, row)
	return true
}
